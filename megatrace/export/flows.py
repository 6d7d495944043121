"""How many arrows a trace can bear."""

from __future__ import annotations

import numpy as np

from megatrace.export.wire import I8, Mask

MAX_FAN_OUT = 4
"""Arrows that leave one slice; the waits that blocked longest have them."""


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
