"""The Muse Spark megakernel as SGLang's ``BuiltMegakernel``.

It runs the steps of a single request, decode and verify; SGLang's own forward runs all others.
Weights are packed when it is built, before SGLang sizes its KV pools; what lies over the pools
is made with the first step, which SGLang runs before it captures one.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Any

from megatrace.agent.kernel import IdleAgent, KernelAgent, RingSize
from megatrace.agent.memory import TraceParams
from megatrace.errors import MegatraceError
from megatrace.jit import HOST
from megatrace.jit.build import CACHE_ENV
from megatrace.muse.config import MuseConfig
from megatrace.muse.decoder import Decoder, lent
from megatrace.muse.engine import Engine
from megatrace.muse.events import MUSE, ROLES
from megatrace.muse.layout import TARGET_LAYOUT
from megatrace.muse.memory import GB, packed_bytes
from megatrace.muse.pack import PackedLayer, pack_all
from megatrace.muse.plan import CacheKind, ExpertKind, launch_bytes
from megatrace.muse.pools import Pools, SlotTables, pool_caches
from megatrace.muse.program import KERNELS, Build, Level, block_count
from megatrace.paths import SESSION_ENV
from megatrace.schema.traffic import LAUNCH_BYTES
from megatrace.sglang import muse_model, one_copy

_LOG = logging.getLogger("megatrace.sglang")
_BESIDE = "beside SGLang's own, which prefills and batches need"
_LINES, _LINES_A_LAYER = 256, 8
"""Of a warp's ring: a whole step must fit."""


class MuseMegakernel:
    """What SGLang's dispatch calls: :meth:`plan` on every step, :meth:`forward` on covered ones.

    Graphs hold the addresses of what it owns: it lives as long as the model.
    """

    draft_sampler = None

    def __init__(
        self, model: Any, sizes: MuseConfig, widths: tuple[int, ...], cache: CacheKind
    ) -> None:
        """Pack the weights of ``model`` and build the kernels; raises MegatraceError.

        ``cache`` is what the pools will hold, which are made later.
        """
        self.widths, self._cache = widths, cache
        self.enabled = True
        """Off: plan() leaves every step to SGLang's own forward. Graphs keep what they have."""
        self._model, self._sizes, self._rank = model, sizes, sizes.shard(0, 1)
        self._text = muse_model.text_model(model)
        weight = self._text.embed_tokens.weight
        self._device = str(weight.device)
        self._target = Build.here("bf16").target if weight.is_cuda else HOST
        self.level: Level = "timeline" if SESSION_ENV in os.environ else "off"
        """The kernels' build from the next step on: the session's, or ``off`` to leave it out."""
        kinds: list[ExpertKind] = [muse_model.expert_kind(layer) for layer in self._text.layers]
        _LOG.info(
            "megatrace: packing the weights for the megakernel takes %.2f GB %s; embedding and "
            "head (%.2f GB), rotary tables and KV pools are shared",
            packed_bytes(sizes, self._rank, kinds) / GB,
            "in place of most of SGLang's experts" if one_copy.wanted() else _BESIDE,
            (weight.nbytes + model.lm_head.weight.nbytes) / GB,
        )
        self._blocks = block_count(self._build_of(kinds[0], self.level))
        self._trace = None if self.level == "off" else self._start_agent(kinds)
        for kind in sorted(set(kinds)):
            self._build_of(kind, self.level).library()
        self._packed = self._pack()
        self._over: tuple[Engine, SlotTables] | None = None
        self._decoders: dict[Level, Decoder] = {}

    @classmethod
    def build(cls, model: Any, hf_config: Any, context: Any) -> MuseMegakernel:
        """``MegakernelSpec.build``: plan() takes one request, so that is the only width."""
        if CACHE_ENV not in os.environ:
            os.environ[CACHE_ENV] = _sglang_cache()
        sizes = muse_model.config_of(hf_config)
        widths = tuple(w for w in context.widths if w == context.tokens_per_request)
        try:
            return cls(model, sizes, widths, muse_model.served_cache())
        except MegatraceError as error:
            raise RuntimeError(f"{error}\n{error.hint}") from error

    def summary(self) -> str:
        """What was built, for SGLang's startup line."""
        kinds = "+".join(sorted({layer.kind for layer in self._packed}))
        size = sum(layer.bytes for layer in self._packed)
        return (
            f"{len(self._packed)} layers, {kinds} experts, {self._cache} keys and values, "
            f"{self._target}, tracer {self.level}, weights packed in {size / GB:.2f} GB"
        )

    def plan(self, input_ids: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any | None:
        """The step to run here, None for SGLang's own forward; looks at the host's data alone."""
        from sglang.kernels.plugin_kernels.nvidia.spec import Step

        if not self.enabled or input_ids is None:
            return None
        if any(a is not None for a in (*args, *kwargs.values())):
            return None
        rows = int(input_ids.shape[0])
        if int(forward_batch.batch_size) != 1 or rows not in self.widths:
            return None
        mode = forward_batch.forward_mode
        if mode.is_decode():
            return Step(mode="decode", rows=rows)
        chain = getattr(forward_batch.spec_info, "topk", 1) == 1
        if mode.is_target_verify() and chain and not forward_batch.contains_mm_inputs():
            return Step(mode="target_verify", rows=rows)
        return None

    def forward(
        self,
        step: Any,
        _original: Any,
        input_ids: Any,
        positions: Any,
        forward_batch: Any,
        *_args: Any,
        **_kwargs: Any,
    ) -> Any:
        """Run ``step``; SGLang's own head makes logits of it, and packs the taps for a draft."""
        decoder = self._decoder_over(step.view.kv_pool.pool)
        decoder.step(
            input_ids, positions, forward_batch.req_pool_indices[:1], forward_batch.out_cache_loc
        )
        normed, taps = (lent(t, step.rows) for t in (decoder.normed, decoder.tapped))
        model = self._model
        return model.logits_processor(input_ids, normed, model.lm_head, forward_batch, taps)

    def _pack(self) -> list[PackedLayer]:
        """All layers; where one copy is wanted, SGLang's experts are given up one by one."""
        fp4, layers = TARGET_LAYOUT[self._target], self._text.layers
        if not one_copy.wanted():
            return pack_all(map(muse_model.take_layer, layers), self._sizes, fp4)
        places = one_copy.Places(self._sizes, fp4, [layer.mlp.experts for layer in layers])
        packed = pack_all(map(muse_model.take_layer, layers), self._sizes, fp4, places.give_up)
        _LOG.info(
            "megatrace: SGLang's own experts are given up (%s=1), which saves %.3f GB: its "
            "forward unpacks them from the megakernel's, a layer at a time",
            one_copy.ENV,
            places.saved / GB,
        )
        return packed

    def _decoder_over(self, pool: Any) -> Decoder:
        """The decoder of ``level``, made with the first step of it; all share one engine."""
        decoder = self._decoders.get(self.level)
        if decoder is None:
            level = self.level
            if self._over is None:
                self._over = self._engine_over(pool)
            tapped = self._model.capture_aux_hidden_states
            decoder = self._decoders[level] = Decoder(
                self._over[0],
                lambda kind: self._build_of(kind, level),
                self._over[1],
                taps=sorted(self._text.layers_to_capture) if tapped else (),
                final_gain=muse_model.final_gain(self._text),
                trace=None if level == "off" else self._trace,
            )
        return decoder

    def _engine_over(self, pool: Any) -> tuple[Engine, SlotTables]:
        """What lies over SGLang's pools, which exist by now."""
        from sglang.srt.model_executor.forward_context import get_req_to_token_pool

        layers = range(len(self._packed))
        # One pool for all layers has no mapping.
        mapping = getattr(pool, "layers_mapping", None)
        sliding = [mapping is not None and bool(mapping[i][1]) for i in layers]
        pools = Pools(
            [pool.get_key_buffer(i) for i in layers],
            [pool.get_value_buffer(i) for i in layers],
            sliding,
            get_req_to_token_pool().req_to_token,
            pool.full_to_swa_index_mapping if any(sliding) else None,
        )
        tables = SlotTables(pools)
        ropes = [muse_model.rope_of(layer) for layer in self._text.layers]
        engine = Engine(
            self._sizes,
            self._rank,
            self._packed,
            pool_caches(self._sizes.layers, pools, tables, ropes),
            self._blocks,
            max(self.widths),
            self._device,
            self._text.embed_tokens.weight,
        )
        return engine, tables

    def _start_agent(self, kinds: list[ExpertKind]) -> TraceParams | None:
        """Rings for the kernels under ``megatrace record``; what the tracer takes."""
        layers = len(kinds)
        lines = max(_LINES, 1 << (_LINES_A_LAYER * layers - 1).bit_length())
        agent = KernelAgent.start(
            MUSE,
            blocks=self._blocks,
            roles=ROLES,
            kernels=KERNELS,
            device="cpu" if self._target == HOST else "cuda",
            size=RingSize(lines=lines, layers=layers),
        )
        if isinstance(agent, IdleAgent):
            self.level = "off"
            return None
        agent.fact(LAUNCH_BYTES, launch_bytes(self._sizes, self._rank, kinds).to_fact())
        atexit.register(agent.close)
        return agent.params

    def _build_of(self, kind: ExpertKind, level: Level) -> Build:
        native = self._target == "sm_103a"
        return Build(self._target, kind, level, native=native, cache=self._cache)


def _sglang_cache() -> str:
    """The folder of built kernels beside SGLang's own."""
    from sglang.srt.environ import envs

    return os.path.join(os.path.expanduser(envs.SGLANG_CACHE_DIR.get()), "megatrace")
