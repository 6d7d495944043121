"""A traced process without a GPU: one rank that writes whole launches into a real ring.

    python fake_rank.py --rank 3 --steps 200 --step-us 1000 [--obey] [--die-at 50] ...

It needs MEGATRACE_SESSION, as any traced process does; without it, it does nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatrace.agent.decision import Decision
from megatrace.ring.control import Ack, read_ack, read_control, write_ack
from megatrace.ring.file import RingFile, RingSpec
from megatrace.ring.host import HostWriter
from megatrace.schema import Cause, Event, EventTable, Kind
from megatrace.schema.layout import (
    ARG_BIT,
    ARG_MASK,
    CLOSING_WORDS,
    COUNT_BITS,
    HEADER_WORDS,
    LEVEL_TIMELINE,
    LINE_WORDS,
    RECORDS_PER_LINE,
    SUM_GROUPS,
    record_word,
)

TABLE = EventTable(
    "fake",
    (
        Event(16, "tile", Kind.SPAN, "One tile."),
        Event(18, "full", Kind.STALL, "The tile has not arrived.", cause=Cause.DATA),
    ),
)
ROLES = ("loader", "math", "math", "storer")
GHZ = 2
CLOCK_SAMPLE, STEP = 2, 3
STALL_CYCLES, STALL_GAP = 300, 900


class FakeRank:
    """Writes launches of ``stalls`` stalls a warp; ``blocks`` blocks, one SM each."""

    def __init__(self, ring: RingFile, stalls: int) -> None:
        self.ring = ring
        self.host = HostWriter(ring)
        self.rings = ring.rings
        self.capacity = ring.lines.shape[1]
        self.stalls = stalls
        words = HEADER_WORDS + 2 * stalls + CLOSING_WORDS
        self.launch_lines = -(-words // RECORDS_PER_LINE)
        self.launch_words = words
        self.next_line = 1
        self.written = 0
        self.timeline_steps = 0
        self.sm, warp = np.divmod(np.arange(self.rings), len(ROLES))
        self.shared = self.sm % SUM_GROUPS * len(ROLES) + warp

    def step(self, step: int, *, timeline: bool) -> None:
        """One launch: counters always, lines where ``timeline``."""
        begin = time.monotonic_ns()
        self._count(step)
        if timeline:
            self.timeline_steps += 1
            self._write(self._words(step))
        self.host.append(STEP, begin, time.monotonic_ns(), step, (1, 8, 1, 3))

    def _count(self, step: int) -> None:
        stalled = np.uint64(STALL_CYCLES * self.stalls << COUNT_BITS | self.stalls)
        np.add.at(self.ring.sums[step % self.ring.sums.shape[0], 0], self.shared, stalled)
        self.ring.block_sums[0] += stalled

    def _words(self, step: int) -> NDArray[np.uint32]:
        """u4 ``(rings, words)`` of one launch."""
        words = np.zeros((self.rings, self.launch_words), np.uint32)
        globaltimer = time.monotonic_ns() + 1_000_000
        clock = globaltimer * GHZ + 1000 * self.sm
        duration = self.stalls * STALL_GAP + 100
        words[:, 0] = record_word(1, 0) | self.sm
        for at, value in enumerate(
            (
                self.timeline_steps - 1,
                step,
                step % self.ring.sums.shape[0],
                globaltimer,
                globaltimer >> 31,
                clock,
                clock >> 31,
                self.written,
            ),
            1,
        ):
            words[:, at] = np.asarray(value & ARG_MASK) | ARG_BIT
        for stall in range(self.stalls):
            at = HEADER_WORDS + 2 * stall
            words[:, at] = record_word(18, 100 + stall * STALL_GAP)
            words[:, at + 1] = ARG_BIT | STALL_CYCLES
        self.written += self.launch_words
        words[:, -3] = record_word(2, duration)
        words[:, -2] = np.asarray((clock + duration) & ARG_MASK) | ARG_BIT
        words[:, -1] = self.written | ARG_BIT
        return words

    def _write(self, words: NDArray[np.uint32]) -> None:
        padded = np.zeros((self.rings, self.launch_lines * RECORDS_PER_LINE), np.uint32)
        padded[:, : self.launch_words] = words
        halves = padded.reshape(self.rings, self.launch_lines, 2, 15)
        for line in range(self.launch_lines):
            place = (self.next_line - 1) % self.capacity
            whole = np.zeros((self.rings, LINE_WORDS), np.uint32)
            whole[:, 1:16] = halves[:, line, 0]
            whole[:, 17:] = halves[:, line, 1]
            whole[:, 0] = whole[:, 16] = self.next_line
            self.ring.lines[:, place] = whole
            self.next_line += 1


def make_ring(
    session: Path, rank: int, *, blocks: int, lines: int, layers: int, name: str = ""
) -> RingFile:
    """The ring of ``rank`` in ``session``, with its table and roles."""
    spec = RingSpec(
        rank=rank,
        blocks=blocks,
        warps=len(ROLES),
        lines=lines,
        layers=layers,
        host_capacity=1024,
        device=0,
        table_hash=TABLE.hash,
        meta={
            "table": TABLE.to_json(),
            "roles": list(ROLES),
            "kernels": {"0": "fake"},
            "process": "scheduler",
        },
    )
    return RingFile.create(session / f"{name or f'rank{rank}'}.ring", spec)


def run(options: argparse.Namespace) -> int:
    """Write the steps asked for; the exit code."""
    session = os.environ.get("MEGATRACE_SESSION")
    if not session:
        return int(options.exit)
    ring = make_ring(
        Path(session),
        options.rank,
        blocks=options.blocks,
        lines=options.lines,
        layers=options.layers,
        name=options.name,
    )
    fake = FakeRank(ring, options.stalls)
    if options.fact:
        fake.host.append_fact(
            "attach",
            {
                "process": "scheduler",
                "state": "attached",
                "attached": ["Scheduler.run_batch"],
                "missed": {"ModelRunner.forward": "AttributeError: gone"},
            },
        )
    for _ in range(3):
        now = time.monotonic_ns()
        fake.host.append(CLOCK_SAMPLE, now, now + 800, 0, (now + 1_000_400,))
    if options.wait_control:
        while not read_control(ring).seq:
            time.sleep(0.002)
    if options.meet:
        _meet(options.meet, str(options.rank))
    begin = time.monotonic()
    _steps(fake, options)
    if options.seconds:
        options.seconds.write_text(str(time.monotonic() - begin))
    if options.linger_s:
        time.sleep(options.linger_s)
    ring.mark_closed()
    ring.close()
    return int(options.exit)


def _meet(folder: Path, name: str) -> None:
    """Return once two ranks are here, each with its ring made: they have lived at once."""
    folder.mkdir(exist_ok=True)
    (folder / name).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.002)


def _steps(fake: FakeRank, options: argparse.Namespace) -> None:
    decision = Decision()
    for step in range(1, options.steps + 1):
        control = read_control(fake.ring)
        opened = bool(options.window) and options.window[0] <= step < options.window[1]
        level = decision.level(
            control, step, begun=fake.timeline_steps, window_open=opened and control.every_n == 1
        )
        timeline = level == LEVEL_TIMELINE if options.obey else True
        fake.step(step, timeline=timeline)
        old = read_ack(fake.ring)
        write_ack(
            fake.ring,
            Ack(
                seq=control.seq,
                level=LEVEL_TIMELINE if timeline else 1,
                step=step,
                timeline_steps=fake.timeline_steps,
                host_records=old.host_records + 1,
                window_open=int(opened),
            ),
        )
        if step == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if options.step_us:
            time.sleep(options.step_us / 1e6)


def parser() -> argparse.ArgumentParser:
    """Options of this program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--name", default="", help="of the ring file; default rank<rank>")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-us", type=int, default=1000)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--lines", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--stalls", type=int, default=40)
    parser.add_argument("--obey", action="store_true", help="record what the control page says")
    parser.add_argument("--wait-control", action="store_true", help="start once it is written")
    parser.add_argument("--meet", type=Path, help="start once two ranks have come to this folder")
    parser.add_argument("--window", type=int, nargs=2, help="steps with a capture window open")
    parser.add_argument("--fact", action="store_true", help="write an attach fact")
    parser.add_argument("--die-at", type=int, default=0, help="SIGKILL itself after that step")
    parser.add_argument("--linger-s", type=float, default=0.0)
    parser.add_argument("--seconds", type=Path, help="file for the seconds the steps took")
    parser.add_argument("--exit", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(run(parser().parse_args()))
