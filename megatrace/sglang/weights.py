"""Weight updates in a server that runs a megakernel: refused before they begin.

A megakernel runs from weights of its own packing, and its captured graphs hold their
addresses. SGLang refuses what loads new ones, but lets a session be opened, in which a peer
writes into its weights without loading: the packed ones would go on with the old.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

_LOG = logging.getLogger("megatrace.sglang")

BEGIN = (
    "sglang.srt.managers.scheduler_components.weight_updater."
    "SchedulerWeightUpdaterManager.begin_weight_update"
)
_NEXT = "restart the server with the new weights, or without --enable-nvidia-megakernel"


def around_begin(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """AROUND ``begin_weight_update(request)``: refuse what SGLang's own loading would refuse."""
    for _role, runner in manager._select_runners(request.selector):
        # SGLang's own mark of a model with weights that an update does not reach.
        why = getattr(runner.model, "_derived_weight_cache_error", None)
        if why is not None:
            return _refusal(f"{why}: {_NEXT}")
    return original(manager, request)


def _refusal(message: str) -> Any:
    from sglang.srt.managers.io_struct import BeginWeightUpdateReqOutput

    _LOG.warning("megatrace: a weight update is refused: %s", message)
    return BeginWeightUpdateReqOutput(success=False, message=message)
