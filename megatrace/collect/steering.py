"""What the recorder asks of the traced processes: level, window, burst, one step in N."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from megatrace.collect.options import RecordOptions
from megatrace.collect.sampling import DrainMeter, EveryN, Load, budget_words_per_s
from megatrace.collect.source import Source
from megatrace.ring.control import Ack, Control, write_control
from megatrace.schema.layout import LEVEL_OFF, LEVEL_TIMELINE

DECIDE_EVERY_S = 0.5
_BURST_PATIENCE_S = 10.0
"""How long a burst may wait for an agent to take it before N may change again."""


@dataclass(slots=True)
class _Rank:
    """One rank: its N, and where the window began that the next decision looks at."""

    every: EveryN
    since_s: float
    ack: Ack
    lines: int = 0
    lost: int = 0
    window_open: bool = False


@dataclass(slots=True)
class _Page:
    """One ring's control page as it was last written."""

    control: Control
    burst_seq: int = 0
    burst_until_s: float = 0.0


class Steering:
    """Writes every control page; decides N where that is left to the recorder.

    While a rank's process has a capture window open (``/start_profile``), N is 1 there.
    """

    def __init__(self, options: RecordOptions) -> None:
        self._options = options
        self._ranks: dict[int, _Rank] = {}
        self._pages: dict[str, _Page] = {}
        self._stopped = False
        self._bursting = False
        self.meter = DrainMeter()

    @property
    def options(self) -> RecordOptions:
        """What is asked for now."""
        return self._options

    def change(self, options: RecordOptions) -> None:
        """Ask for something else from the next look on; N starts anew where it is another."""
        if options.every_n != self._options.every_n:
            for rank in self._ranks.values():
                rank.every = EveryN(options.every_n)
        self._options = options

    def burst(self, source: Source, steps: int, now_s: float) -> Ack:
        """A timeline on the next ``steps`` steps of ``source``; what its agent last said.

        Until :meth:`end_burst` the level is a timeline's even where less is asked for.
        """
        self._bursting = True
        ack = source.ack()
        control = self._control(self._ranks[source.rank], source, steps)
        seq = write_control(source.ring, control)
        self._pages[source.name] = _Page(replace(control, burst=0), seq, now_s + _BURST_PATIENCE_S)
        return ack

    def end_burst(self) -> None:
        """The level is again what was asked for."""
        self._bursting = False

    @property
    def every_n(self) -> dict[int, int]:
        """Rank -> its N."""
        return {rank: state.every.value for rank, state in sorted(self._ranks.items())}

    def welcome(self, source: Source, now_s: float) -> None:
        """Write the first control of a new ring, with the burst if one is asked for."""
        rank = self._rank(source.rank, now_s)
        if source.traced:
            rank.ack = source.ack()
        burst = self._options.burst if source.traced else 0
        control = self._control(rank, source, burst)
        seq = write_control(source.ring, control)
        self._pages[source.name] = _Page(
            replace(control, burst=0), seq if burst else 0, now_s + _BURST_PATIENCE_S
        )

    def steer(self, sources: Iterable[Source], now_s: float) -> None:
        """Look at acks and loads of ``sources`` and write the pages that change."""
        if self._stopped:
            return
        living = [source for source in sources if not source.ended]
        acks = {source.name: source.ack() for source in living}
        traced = {source.rank: source for source in living if source.traced}
        for number, rank in self._ranks.items():
            rank.window_open = any(acks[s.name].window_open for s in living if s.rank == number)
            if number in traced:
                self._decide(rank, traced[number], acks[traced[number].name], len(traced), now_s)
        for source in living:
            self._update(source, acks[source.name], now_s)

    def extend(self, source: Source, now_s: float) -> None:
        """Let an agent go on as soon as its lines were drained, between two looks."""
        page = self._pages.get(source.name)
        if page is None or self._stopped or source.ended or page.burst_seq:
            return
        if source.credit.limit > page.control.timeline_limit > 0:
            self._update(source, source.ack(), now_s)

    def stop(self, sources: Iterable[Source]) -> None:
        """Ask for nothing more: nobody reads on."""
        self._stopped = True
        for source in sources:
            if not source.ended:
                write_control(source.ring, Control(level=LEVEL_OFF))

    def _rank(self, number: int, now_s: float) -> _Rank:
        if number not in self._ranks:
            self._ranks[number] = _Rank(EveryN(self._options.every_n), now_s, Ack())
        return self._ranks[number]

    def _decide(self, rank: _Rank, source: Source, ack: Ack, ranks: int, now_s: float) -> None:
        span_s = now_s - rank.since_s
        if span_s < DECIDE_EVERY_S:
            return
        load = Load(
            lines=source.stats.read - rank.lines,
            lost=source.stats.lost - rank.lost,
            steps=max(0, ack.step - rank.ack.step) if rank.ack.step else 0,
            timeline_steps=max(0, ack.timeline_steps - rank.ack.timeline_steps),
            span_s=span_s,
        )
        rank.since_s, rank.ack = now_s, ack
        rank.lines, rank.lost = source.stats.read, source.stats.lost
        if not rank.window_open:
            rank.every.decide(load, budget_words_per_s(self.meter.words_per_s, ranks))

    def _update(self, source: Source, ack: Ack, now_s: float) -> None:
        page = self._pages[source.name]
        if page.burst_seq:
            # A page written anew before the agent has seen it would take the burst away.
            if ack.seq < page.burst_seq and now_s < page.burst_until_s:
                return
            page.burst_seq = 0
        control = self._control(self._ranks[source.rank], source)
        if control != page.control:
            write_control(source.ring, control)
            page.control = control

    def _control(self, rank: _Rank, source: Source, burst: int = 0) -> Control:
        options = self._options
        raised = self._bursting and options.level < LEVEL_TIMELINE
        every_n = 1 if rank.window_open else rank.every.value
        return Control(
            level=LEVEL_TIMELINE if raised else options.level,
            every_n=0 if raised else every_n,
            burst=burst,
            window_begin=options.window[0],
            window_end=options.window[1],
            sm_mask=options.sm_mask,
            timeline_limit=0 if options.every_n else source.credit.limit,
            counters_every=options.counters_every,
        )
