"""What launches of a kernel must read: facts by which a program says it, so that views judge time.

::

    said = LaunchBytes("layer", always=(80_000_000,) * 62, expert=(28_311_552,) * 62)
    agent.fact(LAUNCH_BYTES, said.to_fact())
    agent.fact(COPY_BANDWIDTH, {"bytes_per_s": 4.2e12, "how": "a copy of 2 GiB"})
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

LAUNCH_BYTES = "launch_bytes"
"""Name of the fact that is :meth:`LaunchBytes.to_fact`, one a kernel."""
COPY_BANDWIDTH = "copy_bandwidth"
"""Name of the fact ``{"bytes_per_s": 4.2e12, "how": "..."}``: measured on the GPU of the run,
bytes read and written together."""
DISTINCT_EXPERTS = "distinct_experts"
"""Name of the counter event by which a kernel says how many experts its rows hit."""


@dataclass(frozen=True, slots=True)
class LaunchBytes:
    """Bytes that each launch of ``kernel`` must read on one GPU, by layer, whatever it does read.

    Attributes:
        always: of every launch of a layer: weights, and keys and values where they are the
            same in all steps.
        expert: what each different expert adds that its rows hit; 0 where there are none.
        left_out: what a launch must read beside and is not in here, in words; "": nothing.
    """

    kernel: str
    always: tuple[int, ...]
    expert: tuple[int, ...]
    left_out: str = ""

    def to_fact(self) -> dict[str, object]:
        """Plain values, as ``KernelAgent.fact`` takes them."""
        return asdict(self) | {"always": list(self.always), "expert": list(self.expert)}

    @classmethod
    def of_fact(cls, value: object) -> LaunchBytes | None:
        """What :meth:`to_fact` gave; None where it is something else."""
        if not isinstance(value, dict):
            return None
        kernel, left_out = value.get("kernel"), value.get("left_out", "")
        always, expert = _bytes(value.get("always")), _bytes(value.get("expert"))
        if not isinstance(kernel, str) or not isinstance(left_out, str) or always is None:
            return None
        if expert is None or len(expert) != len(always):
            return None
        return cls(kernel, always, expert, left_out)


def _bytes(values: object) -> tuple[int, ...] | None:
    if not isinstance(values, list) or not all(isinstance(v, int) and v >= 0 for v in values):
        return None
    return tuple(values)
