"""Where the time of a fused layer goes, by its own records.

    python -m tests.bench.layer_phases tests/muse/h200.mtr [--layer 1]

For every phase, medians over the launches of a capture: when it begins after the first block of
the launch has, how long it lasts, and how long its warps wait for others and for weights in it.
Made by ``megatrace record -o layer.mtr -- python -m tests.bench.record_layer``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from megatrace.analysis import decode
from megatrace.capture.reader import open_capture
from megatrace.muse.events import PHASES

LAUNCH = ["step", "kernel", "layer"]
WARP = [*LAUNCH, "block", "warp"]


def phase_table(records: pd.DataFrame, launches: pd.DataFrame) -> pd.DataFrame:
    """A row a phase: ``begin_us``, ``lasts_us``, ``waits_us`` (medians), ``spans`` (how many)."""
    begin = launches.groupby(LAUNCH, observed=True).begin_ns.min().rename("launch_begin_ns")
    spans = records[(records.kind == "span") & records.event.isin(PHASES)].join(begin, on=LAUNCH)
    waits = records[records.kind.isin(["wait", "stall"])]
    pairs = spans.merge(waits, on=WARP, suffixes=("", "_wait"))
    inside = pairs[
        (pairs.begin_ns_wait >= pairs.begin_ns)
        & (pairs.begin_ns_wait < pairs.begin_ns + pairs.dur_ns)
    ]
    key = [*WARP, "event", "begin_ns"]
    waited = inside.groupby(key, observed=True).dur_ns_wait.sum().rename("waited_ns")
    spans = spans.join(waited, on=key)
    spans["waited_ns"] = spans.waited_ns.fillna(0)
    spans["after_ns"] = spans.begin_ns - spans.launch_begin_ns
    grouped = spans.groupby("event", observed=True)
    table = pd.DataFrame(
        {
            "begin_us": grouped.after_ns.median() / 1e3,
            "lasts_us": grouped.dur_ns.median() / 1e3,
            "waits_us": grouped.waited_ns.median() / 1e3,
            "spans": grouped.size(),
        }
    )
    return table.reindex([phase for phase in PHASES if phase in table.index])


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture", type=Path)
    parser.add_argument("--layer", type=int, help="of one layer alone (default: all)")
    options = parser.parse_args()
    with open_capture(options.capture) as capture:
        trace = decode(capture)
    records, launches = trace.records, trace.launches
    if options.layer is not None:
        records = records[records.layer == options.layer]
        launches = launches[launches.layer == options.layer]
    if records.empty:
        print(f"{options.capture} has no records of layer {options.layer}", file=sys.stderr)
        return 1
    print(phase_table(records, launches).round(1).to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main())
