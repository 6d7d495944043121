"""Does the recorder stay flat and lose nothing? Eight ranks at the default sampling.

    python -m tests.bench.soak_record [--seconds 600] [--ranks 8]

The ranks are real processes that write real lines, paced like a decode server; the recorder
samples by its own rule. Prints lines, lost lines, and the recorder's resident memory in
each fifth of the run; exits 1 where lines were lost or memory grew by more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEP_US = 6000
_LAUNCH = "import subprocess, sys; sys.exit(max(p.wait() for p in [subprocess.Popen([*sys.argv[2:], '--rank', str(r)]) for r in range(int(sys.argv[1]))]))"  # noqa: E501


def resident_mib(pid: int) -> float:
    """Resident memory of a process, its own pages: file mappings come and go."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> int:
    """Run, watch, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    steps = options.seconds * 1_000_000 // STEP_US
    rank = [sys.executable, "-m", "tests.collect.fake_rank", "--obey", "--wait-control"]
    rank += ["--steps", str(steps), "--step-us", str(STEP_US), "--blocks", "16", "--lines", "256"]
    launch = [sys.executable, "-c", _LAUNCH, str(options.ranks), *rank]
    with tempfile.TemporaryDirectory() as folder:
        record = [sys.executable, "-m", "megatrace", "record", "--json"]
        record += ["-o", f"{folder}/run.mtr", "--", *launch]
        process = subprocess.Popen(record, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        seen: list[float] = []
        while process.poll() is None:
            seen.append(resident_mib(process.pid))
            time.sleep(1)
        assert process.stdout is not None
        summary = json.loads(process.stdout.read())
    fifths = [
        statistics.median(seen[i * len(seen) // 5 : (i + 1) * len(seen) // 5]) for i in range(5)
    ]
    lost = summary["lines_lost"]
    print(f"{options.ranks} ranks, {len(seen)} s, one step in {summary['every_n']}")
    print(f"lines {summary['lines']:,}, lost {lost}, file {summary['size_bytes'] / 1e6:.0f} MB")
    print("resident MiB by fifths: " + " ".join(f"{f:.0f}" for f in fifths))
    return int(lost > 0 or fifths[4] > 1.1 * fifths[1])


if __name__ == "__main__":
    sys.exit(main())
