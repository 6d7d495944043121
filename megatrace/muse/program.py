"""A chain of launches of the layer kernel: a graph of its own, or part of somebody else's.

::

    program = Program(launches, blocks=132, build=Build(target="sm_90a", experts="nvfp4"))
    program.replay()
    program.synchronize()
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from megatrace.agent.memory import TraceParams
from megatrace.errors import UsageError
from megatrace.jit import HOST, Kernel, build, load
from megatrace.jit.compilers import gpu_chip
from megatrace.muse.events import MUSE, PHASES
from megatrace.muse.params import Params, check_layout
from megatrace.muse.plan import CacheKind, ExpertKind
from megatrace.paths import asset_dir

Level = Literal["off", "counters", "timeline"]
LEVELS: tuple[Level, ...] = ("off", "counters", "timeline")
CACHES: tuple[CacheKind, ...] = ("bf16", "e4m3")
CHIPS: tuple[str, ...] = ("sm_90a", "sm_103a")
"""GPUs the kernel covers."""
KERNELS: tuple[str, ...] = ("layer", *PHASES)
"""What the launches are called in a trace: the fused layer, then the twin's phases. ``embed`` is
the first launch of a step in either form."""


@dataclass(frozen=True, slots=True)
class Build:
    """One build of kernels/sm103/layer.cu."""

    target: str = HOST
    """A chip such as ``sm_90a``, or HOST."""
    experts: ExpertKind = "nvfp4"
    level: Level = "off"
    every_record: bool = False
    """Every try of a wait, not only those that block."""
    native: bool = False
    """NVFP4 codes in the checkpoint's order, for chips that convert them."""
    cache: CacheKind = "bf16"

    @property
    def kernel(self) -> Kernel:
        """What the compiler is given."""
        experts = 0 if self.experts == "bf16" else 2 if self.native else 1
        return Kernel(
            asset_dir() / "kernels" / "sm103" / "layer.cu",
            (MUSE,),
            {
                "MUSE_LEVEL": str(LEVELS.index(self.level)),
                "MUSE_DETAIL": str(int(self.every_record)),
                "MUSE_EXPERTS": str(experts),
                "MUSE_KV": str(CACHES.index(self.cache)),
            },
        )

    @classmethod
    def here(cls, experts: ExpertKind, *, level: Level = "off", cache: CacheKind = "bf16") -> Build:
        """The build for the GPU of this process.

        Raises UsageError where there is none or the kernel does not cover it.
        """
        chip = gpu_chip()
        if chip is None:
            raise UsageError("no NVIDIA GPU here", hint="the host build runs anywhere: Build()")
        if chip not in CHIPS:
            raise UsageError(f"this GPU is {chip}; the megakernel covers {', '.join(CHIPS)}")
        return cls(chip, experts, level, native=chip == "sm_103a", cache=cache)

    def library(self) -> ctypes.CDLL:
        """The loaded library, from the cache or built. Raises BuildError, SchemaMismatch."""
        library = load(build(self.kernel, self.target), MUSE)
        check_layout(library)
        library.megatrace_last_error.restype = ctypes.c_char_p
        library.muse_stream.restype = ctypes.c_void_p
        library.muse_stream.argtypes = [ctypes.c_void_p]
        return library


class Program:
    """Launches in order, as one CUDA graph or, in the host build, one after the other.

    Every call raises RuntimeError with the kernel's or the driver's words.
    """

    def __init__(
        self,
        launches: Sequence[Params],
        build: Build,
        *,
        blocks: int = 0,
        trace: TraceParams | None = None,
    ) -> None:
        """Take ``launches``; ``blocks`` 0: one an SM. What they point at must outlive this."""
        if not launches:
            raise UsageError("a program needs a launch")
        self._library = build.library()
        self._handle = ctypes.c_void_p()
        array = (Params * len(launches))(*launches)
        self._call(
            "create",
            array,
            ctypes.c_uint32(len(launches)),
            ctypes.c_uint32(blocks),
            ctypes.byref(trace or TraceParams()),
            ctypes.byref(self._handle),
        )

    @property
    def stream(self) -> int:
        """Handle of the CUDA stream it runs on; 0 in the host build."""
        return self._library.muse_stream(self._handle) or 0

    def replay(self) -> None:
        """Run all launches once, asynchronously on a GPU; the first call captures them."""
        self._call("replay", self._handle)

    def launch(self, stream: int) -> None:
        """Put all launches into the CUDA stream of handle ``stream``, which may be capturing.

        The host build runs them.
        """
        self._call("launch", self._handle, ctypes.c_void_p(stream))

    def synchronize(self) -> None:
        """Wait until all replays have ended."""
        self._call("synchronize", self._handle)

    def close(self) -> None:
        """Give the graph back."""
        if self._handle:
            self._library.muse_destroy(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> Program:
        """Itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    def _call(self, name: str, *args: Any) -> None:
        if getattr(self._library, f"muse_{name}")(*args):
            raise RuntimeError(self._library.megatrace_last_error().decode())


def block_count(build: Build) -> int:
    """Blocks that a launch has by default: one an SM."""
    library = build.library()
    count = ctypes.c_uint32()
    if library.muse_blocks(ctypes.byref(count)):
        raise RuntimeError(library.megatrace_last_error().decode())
    return count.value
