"""The tables people ask of a capture: where a layer's time goes, and who waited for whom.

Each takes a :class:`~megatrace.analysis.trace.Trace` and gives a pandas frame as
:mod:`megatrace.analysis.columns` declares it: column by column, with units. Times are whole
ns of the rank's globaltimer, -1 is "not known". Captures bigger than memory go by step::

    for trace in views.by_step(capture):
        print(views.stall_classes(trace).groupby("class", observed=True).dur_ns.sum())
"""

from megatrace.analysis.bystep import by_step
from megatrace.analysis.columns import TABLES, Column, Table
from megatrace.analysis.hoststeps import step_times
from megatrace.analysis.path import critical_path, critical_path_sums
from megatrace.analysis.phases import imbalance, phase_times
from megatrace.analysis.stalls import stall_classes
from megatrace.analysis.timeliness import prefetch_timing
from megatrace.analysis.traffic import expert_traffic, floor
from megatrace.analysis.waits import sync_waits
from megatrace.analysis.walls import launch_times

__all__ = [
    "TABLES",
    "Column",
    "Table",
    "by_step",
    "critical_path",
    "critical_path_sums",
    "expert_traffic",
    "floor",
    "imbalance",
    "launch_times",
    "phase_times",
    "prefetch_timing",
    "stall_classes",
    "step_times",
    "sync_waits",
]
