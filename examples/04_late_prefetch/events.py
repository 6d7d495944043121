"""The events of the layer with a late prefetch."""

from megatrace.schema import Cause, Event, EventTable, Kind

LAYER = EventTable(
    "layer",
    (
        Event(16, "up", Kind.SPAN, "First phase: a stream of weights to a sum."),
        Event(18, "down", Kind.SPAN, "Second phase: few weights, times the mean of all sums."),
        Event(20, "up_weights", Kind.STALL, "The tile has not arrived.", cause=Cause.DATA),
        Event(21, "stage_free", Kind.STALL, "No stage of the ring is free.", cause=Cause.SPACE),
        Event(22, "sum", Kind.PUBLISH, "This block's sum, for all.", edge="sum"),
        Event(
            23,
            "sum_wait",
            Kind.WAIT,
            "Another block's sum is missing; slot is the last one missed.",
            cause=Cause.INPUT,
            edge="sum",
        ),
        Event(
            24,
            "ask_down",
            Kind.PREFETCH,
            "A tile of the second phase is asked for; slot is its number.",
            edge="down_weights",
        ),
        Event(
            25,
            "down_weights",
            Kind.WAIT,
            "The first touch of that tile.",
            cause=Cause.DATA,
            edge="down_weights",
        ),
    ),
)
