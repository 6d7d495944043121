"""The kernel of the README's "Trace your own kernel", with what it leaves to its reader."""

from __future__ import annotations

import re
from pathlib import Path

from megatrace.schema import EventTable
from tests.tools.sass import ROOT

TILE_FLOATS = 64
_ALIAS = "namespace ev = megatrace::events::gemv;\n"
_SURROUNDINGS = """
constexpr uint32_t kStages = 4, kThreads = 64, kTileBytes = 4 * 64;
struct Shared {
  alignas(128) float tile[kStages][kTileBytes / 4];
  uint64_t full[kStages];
};
struct Work {
  const float* weights;  // [blocks][tiles][64]
  float* sums;           // [blocks][64]
  uint32_t tiles;        // of a block, at most kStages
};
MEGATRACE_DEVICE Shared& first_loads(const Work& work) {
  Shared& s = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) ptx::mbar_init(&s.full[i], 1);
    ptx::mbar_init_fence();
    const float* weights = work.weights + size_t{blockIdx.x} * work.tiles * (kTileBytes / 4);
    for (uint32_t i = 0; i < work.tiles; ++i) {
      ptx::mbar_expect_tx(&s.full[i], kTileBytes);
      ptx::bulk_load(s.tile[i], weights + i * (kTileBytes / 4), kTileBytes, &s.full[i]);
    }
  }
  __syncthreads();
  return s;
}
MEGATRACE_DEVICE void consume(const Work& work, Shared& s, uint32_t i) {
  work.sums[blockIdx.x * kThreads + threadIdx.x] += s.tile[i % kStages][threadIdx.x];
}
"""


def block(language: str, holding: str) -> str:
    """The one fenced block of this language with these words."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (found,) = (block for block in blocks if holding in block)
    return str(found)


def events() -> str:
    """The module with the table."""
    return block("python", "EventTable")


def table() -> EventTable:
    """The table of the page's module."""
    names: dict[str, EventTable] = {}
    exec(events(), names)
    return names["GEMV"]


def kernel() -> str:
    """The kernel, whole."""
    text = block("cpp", "__global__")
    assert _ALIAS in text
    return text.replace(_ALIAS, _ALIAS + _SURROUNDINGS)


def host_half() -> str:
    """What launches it, in C++: stands below the kernel."""
    return block("cpp", "megatrace_table_hash")


def program() -> str:
    """The Python that runs it; takes ``blocks``, ``work``, ``steps`` and ``stream`` as given."""
    return block("python", "KernelAgent")


def write(folder: Path) -> None:
    """The page's files: ``my_events.py`` and ``gemv.cu``."""
    (folder / "my_events.py").write_text(events())
    (folder / "gemv.cu").write_text(kernel() + host_half())
