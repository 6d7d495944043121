"""Arrows from what was waited for to who waited, by edge and slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.export.wire import I8, Mask

MAX_FAN_OUT = 4
"""Arrows that leave one slice; the waits that blocked longest have them."""


@dataclass(frozen=True, slots=True)
class Ends:
    """One side of the arrows, arrays of one length.

    ``key`` is equal where edge, slot and whatever else must agree are equal; ``time_ns``
    is when a producer is done, or when a wait ends; ``weight`` says which arrows matter
    most; ``row`` is the slice.
    """

    key: I8
    time_ns: I8
    weight: I8
    row: I8

    @classmethod
    def join(cls, parts: list[Ends]) -> Ends:
        """All of ``parts``."""
        empty = [np.empty(0, np.int64)]
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in parts] or empty)
                for name in ("key", "time_ns", "weight", "row")
            )
        )


def number_keys(*columns: NDArray[np.integer]) -> I8:
    """A number for each distinct combination of the columns' values."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        number = np.unique(number * max(1, len(values)) + place, return_inverse=True)[1]
    return number


def last_arrivals(producers: Ends, waits: Ends) -> tuple[I8, I8]:
    """For each wait that has one, the last producer of its key done before its end.

    That is who let it go. Returns (indices of producers, indices of waits).
    """
    before, after, of_key = _merged(producers, waits)
    found = of_key[before] == of_key[after]
    found &= before < len(producers.key)
    return before[found], after[found] - len(producers.key)


def first_uses(producers: Ends, waits: Ends) -> tuple[I8, I8]:
    """As :func:`last_arrivals`, but only the first wait after each producer has one."""
    producer, wait = last_arrivals(producers, waits)
    order = np.lexsort((waits.time_ns[wait], producer))
    producer, wait = producer[order], wait[order]
    fresh = np.ones(len(producer), np.bool_)
    fresh[1:] = producer[1:] != producer[:-1]
    return producer[fresh], wait[fresh]


def _merged(producers: Ends, waits: Ends) -> tuple[I8, I8, I8]:
    """(last producer before, wait) pairs in the rows of both, and keys of those."""
    key = np.concatenate([producers.key, waits.key])
    time = np.concatenate([producers.time_ns, waits.time_ns])
    is_wait = np.arange(len(key)) >= len(producers.key)
    # The viewer wants an arrow to start before it ends: at one time a wait comes first.
    order = np.lexsort((~is_wait, time, key))
    place = np.where(is_wait[order], -1, np.arange(len(order)))
    latest = np.maximum.accumulate(place) if len(place) else place
    after = np.flatnonzero(is_wait[order] & (latest >= 0))
    return order[latest[after]], order[after], key


def bounded(producer: I8, weight: I8, limit: int) -> tuple[Mask, int]:
    """Which arrows to keep, heaviest first, and how many are left out.

    At most ``limit`` in all and :data:`MAX_FAN_OUT` a producer: the viewer follows every
    arrow of a selected slice, and hangs where there are very many.
    """
    kept = np.zeros(len(producer), np.bool_)
    order = np.lexsort((-weight, producer))
    sorted_producer = producer[order]
    nth = np.arange(len(order)) - np.searchsorted(sorted_producer, sorted_producer)
    chosen = order[nth < MAX_FAN_OUT]
    if len(chosen) > limit:
        chosen = chosen[np.argsort(-weight[chosen], kind="stable")[:limit]]
    kept[chosen] = True
    return kept, len(producer) - len(chosen)
