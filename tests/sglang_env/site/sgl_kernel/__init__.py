"""A stand-in for sglang-kernel on machines without a GPU, for tests only.

SGLang's CPU path imports many names and calls few. Those it calls have a body here, in
plain torch; any other name is a function that says so when it is called. No AMX
operator is registered, so SGLang takes its ``forward_native`` everywhere.
"""

from __future__ import annotations

import ctypes

from sgl_kernel import cpu_ops  # noqa: F401  registers torch operators

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(rows, table, begin, end, locations, _width):
    """Write each request's new KV locations into its row of the table."""
    at = 0
    for row, first, last in zip(rows.tolist(), begin.tolist(), end.tolist(), strict=True):
        count = last - first
        table[row, first:last] = locations[at : at + count].to(table.dtype)
        at += count


def assign_extend_cache_locs_cpu(rows, table, begin, end, locations, _width):
    """The reverse: collect the KV locations of each request from its row."""
    at = 0
    for row, first, last in zip(rows.tolist(), begin.tolist(), end.tolist(), strict=True):
        count = last - first
        locations[at : at + count] = table[row, first:last].to(locations.dtype)
        at += count


def copy_all_layer_kv_cache_cpu(addresses, strides, to, source):
    """Move KV rows in place, every layer; sources are read before anything is written."""
    for base, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        kept = [ctypes.string_at(base + i * stride, stride) for i in source.tolist()]
        for i, row in zip(to.tolist(), kept, strict=True):
            ctypes.memmove(base + i * stride, row, stride)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args, **_kwargs):
        raise NotImplementedError(f"the test stand-in of sgl_kernel has no {name}")

    absent.__name__ = name
    return absent
