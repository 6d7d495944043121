"""Saves what SGLang's own Muse Spark class computes, layer by layer, on a CPU.

    python -m tests.muse.with_torch.sglang_taps MODEL OUT.safetensors

One prompt, then greedy steps, without a server. Names are ``step.layer.tap``, and ``step.tap``
for what no layer has. Needs the environment and the stand-ins of tests/sglang_env.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", SGLANG_PLUGINS="none")

import sgl_kernel  # noqa: F401  registers torch operators
import torch
from safetensors.torch import save_file
from sglang.benchmark import one_batch
from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
from sglang.srt.server_args import PortArgs, ServerArgs

PROMPT = [(7 * i + 20) % 300 for i in range(40)]
"""Longer than the tiny model's window."""
STEPS = 4


def load(model: Path) -> Any:
    """A model runner of SGLang, as its one-batch benchmark makes it."""
    arguments = ServerArgs(
        model_path=str(model),
        device="cpu",
        attention_backend="torch_native",
        grammar_backend="none",
        kv_cache_dtype="bf16",
        max_total_tokens=4096,
        max_running_requests=4,
    )
    arguments.resolve_once()
    one_batch._set_envs_and_config(arguments)
    world_rank = spawn_world_rank(arguments, tp_rank=0, pp_rank=0)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=world_rank, gpu_id=0))
    one_batch._init_process_global_configs()
    return one_batch.load_model(arguments, PortArgs.init_new(arguments), 0, 0)[0].torch_runner


class Recorder:
    """Keeps what passes the modules of the model."""

    def __init__(self, language_model: Any) -> None:
        self.kept: dict[str, torch.Tensor] = {}
        self.step = 0
        for i, layer in enumerate(language_model.layers):
            moe = layer.mlp
            self._hook(layer, i, lambda given, _: {"before": given[1], "a": given[2]})
            self._hook(layer, i, lambda _, made: {"stream": made[0]})
            self._hook(layer.self_attn, i, lambda _, made: {"b": made})
            self._hook(moe, i, lambda given, made: {"x": given[0], "branch": made})
            self._hook(moe.gate, i, lambda _, made: {"logits": made})
            self._hook(moe.experts, i, lambda given, made: {"y": given[0], "sum": made})
            self._hook(moe.experts, i, lambda given, _: {"weights": given[1], "ids": given[2]})

    def _hook(
        self, module: Any, layer: int, pick: Callable[[Any, Any], dict[str, torch.Tensor]]
    ) -> None:
        def keep(_: Any, given: Any, made: Any) -> None:
            for name, tensor in pick(given, made).items():
                self.kept[f"{self.step}.{layer}.{name}"] = tensor.detach().clone()

        module.register_forward_hook(keep)

    def end_step(self, **tensors: torch.Tensor) -> None:
        """Keep what no layer has."""
        for name, tensor in tensors.items():
            self.kept[f"{self.step}.{name}"] = tensor.detach().clone()
        self.step += 1


def main() -> None:
    """Run and save."""
    runner = load(Path(sys.argv[1]))
    recorder = Recorder(runner.model.model.language_model)
    requests = one_batch.prepare_synthetic_inputs_for_latency_test(1, len(PROMPT), [PROMPT])
    following, logits, batch = one_batch.extend(requests, runner)
    recorder.end_step(tokens=torch.tensor(PROMPT), logits=logits)
    for _ in range(STEPS):
        tokens = following
        following, logits = one_batch.decode(tokens, batch, runner)
        recorder.end_step(tokens=tokens, logits=logits)
    save_file({name: t.contiguous() for name, t in recorder.kept.items()}, sys.argv[2])
    # SGLang's threads would outlive the main one.
    os._exit(0)


if __name__ == "__main__":
    main()
