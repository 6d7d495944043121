"""One rank's GPU as tracks: steps and layers, SMs with their phases, warps.

rank 0 GPU          steps, and under them launches in two lanes
  stalled warps     by cause
  SM 17 (block 12)  launches, and under them the phases of the lead warp
    loader w0       launches of the warp, and in them every record of it

Few SMs of many launches are what a server records, and there the block of an SM is another
one in each launch: so an SM is followed, and each launch says its block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.export.counters import stalled_warps
from megatrace.export.frames import Rank
from megatrace.export.launches import Envelopes, launch_labels
from megatrace.export.scene import Scene
from megatrace.export.slices import COLOUR
from megatrace.export.sms import draw_sms
from megatrace.export.tables import Tables, tell_launches, tell_warps
from megatrace.export.tracks import NO_PARENT, Track
from megatrace.export.warps import draw_warps, warp_name
from megatrace.export.wire import I8
from megatrace.schema import CAUSES, Kind


@dataclass(frozen=True, slots=True)
class Drawn:
    """What of a rank came into the scene.

    ``row_of_record`` is the slice of each record, -1 where there is none; ``block_of_record``
    its block, -1 where its slice or the name of its SM's track says it; ``step_rows`` the slice
    of each step id.
    """

    row_of_record: I8
    block_of_record: I8
    step_rows: dict[int, int]
    unfinished: int
    lead_warp: str


def draw_rank(scene: Scene, rank: Rank, name: str, tables: Tables, *, args: bool = True) -> Drawn:
    """Add ``rank`` as ``name`` to ``scene``; ``args`` also the arguments of its slices."""
    root, step_rows = _draw_steps(scene, rank, name, tables)
    _draw_stalled(scene, rank, root)
    sms = draw_sms(scene, rank, root, len(CAUSES))
    launches, rows, told = draw_warps(scene, rank, sms, tables.edges, args=args)
    if args:
        tell_warps(scene, rank, tables, launches)
    lead = warp_name(rank, sms.lead) if sms.lead >= 0 else ""
    records = rank.records
    block = np.where(sms.several[records.launch] & ~told, records.block, -1)
    return Drawn(rows, block, step_rows, int(records.unfinished.sum()), lead)


def _draw_steps(scene: Scene, rank: Rank, name: str, tables: Tables) -> tuple[int, dict[int, int]]:
    """Steps and launches on the rank's own track; returns it and the row of each step."""
    title = f"{name} GPU"
    if rank.device == "cpu":
        title += " (host build, device=cpu)"
    # Steps and launches have lanes of their own, so that launches alternate between two.
    row = Track(title, NO_PARENT, rank.rank, row=f"gpu {rank.rank}", async_=True)
    root = scene.tracks.add(row)
    launches = rank.launches
    steps = Envelopes.of(launches.step, launches)
    numbers = launches.step[steps.first].tolist()
    labels = [scene.label(f"step {number}", "step") for number in numbers]
    rows = scene.add(root, labels, steps.begin_ns, steps.dur_ns)

    each = Envelopes.of(launches.launch, launches)
    drawn = scene.add(
        scene.tracks.add(row), launch_labels(scene, launches, each.first),
        each.begin_ns, each.dur_ns,
    )  # fmt: skip
    scene.extra(drawn, COLOUR, launches.layer[each.first].astype(np.int64) + 1)
    tell_launches(scene, rank, tables, launches.launch[each.first], drawn)
    return root, dict(zip(numbers, rows.tolist(), strict=True))


def _draw_stalled(scene: Scene, rank: Rank, root: int) -> None:
    records = rank.records
    blocked = records.kind_mask(Kind.STALL, Kind.WAIT)
    for order, cause in enumerate(CAUSES):
        of_cause = np.array([event.cause is cause for event in records.events] or [False])
        chosen = np.flatnonzero(blocked & of_cause[records.event])
        if not len(chosen):
            continue
        begin = records.begin_ns[chosen]
        time, value = stalled_warps(begin, begin + records.dur_ns[chosen])
        track = Track(
            f"stalled warps: {cause}", root, order, counter=True, unit="warps", scale="stalled"
        )
        scene.samples(scene.tracks.add(track), time, value)
