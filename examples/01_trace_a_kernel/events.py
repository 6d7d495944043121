"""The events of the example kernel."""

from megatrace.schema import Arg, Cause, Event, EventTable, Kind

STREAM = EventTable(
    "stream",
    (
        Event(16, "sum", Kind.SPAN, "First half of the weights: tiles to a partial sum."),
        Event(18, "scale", Kind.SPAN, "Second half, times the mean of all partial sums."),
        Event(20, "full", Kind.STALL, "The tile has not arrived.", cause=Cause.DATA),
        Event(21, "empty", Kind.STALL, "No stage of the ring is free.", cause=Cause.SPACE),
        Event(22, "partial", Kind.PUBLISH, "This block's partial sum, for all.", edge="partial"),
        Event(
            23,
            "partials",
            Kind.WAIT,
            "Another block's partial sum is missing; slot is the last one missed.",
            cause=Cause.INPUT,
            edge="partial",
        ),
        Event(
            24,
            "early_tile",
            Kind.PREFETCH,
            "A tile of the second half, asked for before the hand-off.",
            edge="tile",
        ),
        Event(
            25,
            "first_use",
            Kind.WAIT,
            "The first touch of a tile that was asked for early.",
            cause=Cause.DATA,
            edge="tile",
        ),
        Event(26, "tile", Kind.INSTANT, "A tile is about to be read.", args=(Arg("index"),)),
        Event(27, "tile_done", Kind.INSTANT, "A tile has been read."),
    ),
)
