"""The table of events and the picture of the words."""

from megatrace.schema.events import CAUSES, CORE, Arg, Cause, Event, EventTable, Kind
from megatrace.schema.host import HOST, HostEvent
from megatrace.schema.layout import LAYOUT_VERSION

__all__ = [
    "CAUSES",
    "CORE",
    "HOST",
    "LAYOUT_VERSION",
    "Arg",
    "Cause",
    "Event",
    "EventTable",
    "HostEvent",
    "Kind",
]
