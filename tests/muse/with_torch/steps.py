"""Whole steps over a few layers: their launches, their outcome, and what the reference says.

Keys and values of all positions are there from the start. A step overwrites those of its rows, and
``restore`` puts them back, so that the outcome of a step depends on its inputs alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from megatrace.muse.config import MuseConfig, RankShape
from megatrace.muse.engine import Cache, Engine, Form, new_cache
from megatrace.muse.layout import Fp4Layout
from megatrace.muse.pack import pack_layer
from megatrace.muse.params import Params
from megatrace.muse.program import Build, Program
from megatrace.muse.taps import Past, Reference, Taps
from megatrace.muse.tensors import LayerTensors, random_layer
from tests.muse.phases import keep, kept

Inputs = tuple[int, int]
"""(rows, context) of a step; its tokens follow from them."""


@dataclass
class Steps:
    """The first layers of a model on one rank, with random weights and a full cache."""

    model: MuseConfig
    rank: RankShape
    build: Build
    positions: int
    device: str = "cpu"
    blocks: int = 4
    seed: int = 0
    tensors: list[LayerTensors] = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        model, rank, device = self.model, self.rank, self.device
        generator = torch.Generator(device).manual_seed(self.seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        layers = range(len(model.layers))
        self.tensors = [
            random_layer(model, rank, self.seed + i, experts=self.build.experts, device=device)
            for i in layers
        ]
        kind = self.build.cache
        caches = [new_cache(model, rank, i, self.positions, device, kind) for i in layers]
        for cache in caches:
            cache.keys.copy_(draw(*cache.keys.shape))
            cache.values.copy_(draw(*cache.values.shape))
        self._before = [(cache.keys.clone(), cache.values.clone()) for cache in caches]
        fp4: Fp4Layout = "native" if self.build.native else "bits"
        self.engine = Engine(
            model,
            rank,
            [pack_layer(t, model, fp4) for t in self.tensors],
            caches,
            self.blocks,
            model.max_rows,
            device,
            embedding=draw(model.vocabulary, model.hidden).bfloat16(),
        )
        for rows in self.engine.peers.values():
            rows.copy_(draw(*rows.shape) * 0.3)
        self.engine.empty()

    # -- the kernel ------------------------------------------------------------------------

    def launches(self, rows: int, form: Form = "fused") -> list[Params]:
        """A step from its tokens on."""
        return self.engine.step(rows, form, embed=True)

    def program(self, rows: int, form: Form = "fused") -> Program:
        """The same, ready to run."""
        return Program(self.launches(rows, form), self.build, blocks=self.blocks)

    def prepare(self, inputs: Inputs) -> None:
        """Tokens and context of a step."""
        rows, context = inputs
        self.engine.context.fill_(context)
        self.engine.tokens[:rows] = self.tokens(inputs)

    def tokens(self, inputs: Inputs) -> torch.Tensor:
        """int32 [rows]."""
        rows, context = inputs
        seeded = torch.Generator().manual_seed(1000 * context + rows)
        drawn = torch.randint(self.model.vocabulary, (rows,), generator=seeded)
        return drawn.int().to(self.device)

    def replay(self, program: Program, inputs: Inputs) -> None:
        """One step, to its end."""
        self.prepare(inputs)
        if self.device == "cuda":
            torch.cuda.synchronize()
        program.replay()
        program.synchronize()

    def made(self, inputs: Inputs) -> list[torch.Tensor]:
        """What the step leaves: stream, taps, and each layer's new keys and values."""
        rows, _ = inputs
        made = [self.engine.stream[:rows], *(tap[:rows] for tap in self.engine.taps.values())]
        for layer in range(len(self.engine.caches)):
            made += self.new_keys(layer, inputs)
        return made

    def new_keys(self, layer: int, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values of the step's rows."""
        cache = self.engine.caches[layer]
        new = self._new(cache, inputs)
        return kept(cache.keys, new), kept(cache.values, new)

    def digest(self, inputs: Inputs) -> str:
        """Of every bit of what the step leaves."""
        found = hashlib.sha256()
        for tensor in self.made(inputs):
            found.update(tensor.contiguous().view(torch.int16).cpu().numpy().tobytes())
        return found.hexdigest()[:16]

    def restore(self, inputs: Inputs) -> None:
        """Puts the keys and values back that the step has overwritten."""
        for cache, (keys, values) in zip(self.engine.caches, self._before, strict=True):
            new = self._new(cache, inputs)
            keep(cache.keys, new, kept(keys, new))
            keep(cache.values, new, kept(values, new))

    def disturbed(self) -> int:
        """Keys and values that differ from what they were before all steps."""
        pairs = zip(self.engine.caches, self._before, strict=True)
        return sum(
            int((cache.keys.bfloat16() != keys.bfloat16()).sum())
            + int((cache.values.bfloat16() != values.bfloat16()).sum())
            for cache, (keys, values) in pairs
        )

    def _new(self, cache: Cache, inputs: Inputs) -> torch.Tensor:
        rows, context = inputs
        return cache.slots[context : context + rows].long()

    # -- the reference ---------------------------------------------------------------------

    def streams(self, inputs: Inputs, form: Form = "fused") -> list[torch.Tensor]:
        """The kernel's own stream before each layer and after the last."""
        self.prepare(inputs)
        found: list[torch.Tensor] = []
        for group in _by_layer(self.launches(inputs[0], form)):
            with Program(group, self.build, blocks=self.blocks) as program:
                program.replay()
                program.synchronize()
            found.append(self.engine.stream[: inputs[0]].clone())
        return found

    def reference(self, inputs: Inputs, streams: list[torch.Tensor]) -> list[Taps]:
        """The layers' taps, each from the stream given; the embedding's come first."""
        rows, context = inputs
        assert self.engine.embedding is not None
        reference = Reference(self.model, self.rank, cache=self.build.cache)
        first = reference.embed(self.tokens(inputs).long(), self.engine.embedding, self.tensors[0])
        pasts = []
        for cache, (keys, values) in zip(self.engine.caches, self._before, strict=True):
            old = cache.slots[:context].long()
            pasts.append(Past(kept(keys, old), kept(values, old)))
        others = {name: t[:, :rows] for name, t in self.engine.peers.items()}
        taps = reference.step(
            self.tensors,
            first["embed"]["stream"],
            pasts,
            forced=dict(enumerate(streams)),
            peers=[others] * len(self.tensors),
        )
        return [first, *taps]


def _by_layer(launches: list[Params]) -> Iterator[list[Params]]:
    """The launches that begin with one that empties, with those that follow it."""
    group: list[Params] = []
    for p in launches:
        if p.next_handoff_vectors and group:
            yield group
            group = []
        group.append(p)
    yield group


def digests(steps: Steps, inputs: Sequence[Inputs], form: Form = "fused") -> list[str]:
    """The outcome of step after step, in this order, each from the same past."""
    programs = {rows: steps.program(rows, form) for rows in {rows for rows, _ in inputs}}
    found = []
    for one in inputs:
        steps.replay(programs[one[0]], one)
        found.append(steps.digest(one))
        steps.restore(one)
    for program in programs.values():
        program.close()
    return found


def digests_under(
    options: Mapping[str, str],
    model: MuseConfig,
    rank: RankShape,
    positions: int,
    inputs: Sequence[Inputs],
    form: Form,
    build: Build,
) -> list[str]:
    """The same with options of the host build; in a process that has not begun to use it."""
    os.environ.update(options)
    torch.set_num_threads(1)
    return digests(Steps(model, rank, build, positions), inputs, form)
