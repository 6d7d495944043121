"""Which of SGLang's processes this is, and which rank it serves."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import FrameType
from typing import Any


class Role(StrEnum):
    """What a process of the server does."""

    MAIN = "main"
    """HTTP server and tokenizer."""
    SCHEDULER = "scheduler"
    """One rank: schedules batches and runs the model."""
    DETOKENIZER = "detokenizer"
    DP_CONTROLLER = "dp_controller"
    OTHER = "other"
    """A process that SGLang started in a way not known here."""


# SGLang tells a plugin nothing about the process it is loaded in; the function that the
# process was started with is on the stack of every load_plugins().
_ENTRIES = {
    "run_scheduler_process": Role.SCHEDULER,
    "run_detokenizer_process": Role.DETOKENIZER,
    "run_data_parallel_controller_process": Role.DP_CONTROLLER,
}


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Role and ranks; ``rank`` counts GPUs over data, pipeline and tensor parallel ranks."""

    role: Role
    rank: int = 0
    tp_rank: int = 0
    pp_rank: int = 0
    dp_rank: int = 0
    gpu_id: int = -1

    def facts(self) -> dict[str, object]:
        """The same as plain JSON values."""
        return asdict(self)


def identify() -> ProcessIdentity:
    """Identify this process from its stack; call it from inside ``load_plugins()``."""
    role, arguments = _entry()
    if role is Role.SCHEDULER:
        return _scheduler(arguments)
    return ProcessIdentity(role)


def scheduler_arguments() -> Any | None:
    """SGLang's ``ServerArgs`` in a scheduler, None elsewhere; call it as :func:`identify`."""
    role, arguments = _entry()
    return arguments.get("server_args") if role is Role.SCHEDULER else None


def _entry() -> tuple[Role, dict[str, Any]]:
    """The role of this process, and the arguments it was started with."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        role = _ENTRIES.get(frame.f_code.co_name)
        if role is not None:
            return role, frame.f_locals
        frame = frame.f_back
    return (Role.MAIN if multiprocessing.parent_process() is None else Role.OTHER), {}


def _scheduler(arguments: dict[str, Any]) -> ProcessIdentity:
    """Ranks from the arguments of ``run_scheduler_process``."""
    args = arguments.get("server_args")
    tp_rank, pp_rank = _int(arguments.get("tp_rank")), _int(arguments.get("pp_rank"))
    dp_rank = _int(arguments.get("dp_rank"))
    tp_size, pp_size = (max(1, _int(getattr(args, n, 1))) for n in ("tp_size", "pp_size"))
    rank = pp_rank * tp_size + tp_rank
    if not getattr(args, "enable_dp_attention", False):
        # With attention DP the data parallel ranks are the tensor parallel ones.
        rank += dp_rank * tp_size * pp_size
    return ProcessIdentity(
        Role.SCHEDULER, rank, tp_rank, pp_rank, dp_rank, _int(arguments.get("gpu_id"), -1)
    )


def _int(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) else default
