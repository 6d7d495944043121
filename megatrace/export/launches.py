"""Launches as slices: of a whole GPU, of a block, of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.export.frames import RankLaunches
from megatrace.export.scene import Scene
from megatrace.export.wire import I8, Integers


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Groups of launch rows, each from its first begin to its last end.

    ``first`` [G] is a launch row of each group, ``group`` [launch rows] the group of each.
    """

    first: I8
    begin_ns: I8
    dur_ns: I8
    group: I8

    @classmethod
    def of(cls, group: Integers, launches: RankLaunches) -> Envelopes:
        """Rows with equal ``group`` are one."""
        _, first, which = np.unique(group, return_index=True, return_inverse=True)
        begin = np.full(len(first), np.iinfo(np.int64).max)
        end = np.full(len(first), np.iinfo(np.int64).min)
        np.minimum.at(begin, which, launches.begin_ns)
        np.maximum.at(end, which, launches.end_ns)
        return cls(first, begin, end - begin, which)


def launch_labels(scene: Scene, launches: RankLaunches, rows: I8, category: str = "launch") -> I8:
    """``layer 3``, and with the kernel's name where there are several kernels."""
    several = len(np.unique(launches.kernel)) > 1
    layered = bool((launches.layer > 0).any())
    pairs = np.stack([launches.kernel[rows], launches.layer[rows]])
    pairs, which = np.unique(pairs, axis=1, return_inverse=True)
    labels = []
    for kernel, layer in pairs.T.tolist():
        parts = [f"layer {layer}"] if layered else []
        if several or not layered:
            parts.append(launches.kernels[kernel])
        labels.append(scene.label(" ".join(parts), category))
    return np.array(labels, np.int64)[which.ravel()]
