"""What the recorder keeps up with: fake ranks that write whole launches as fast as asked.

    python tests/bench/bench_ranks.py [--ranks 8] [--seconds 5] [--repeat 3]

Prints, for N fixed at 1 and for N chosen: lines a second, words lost, the recorder's own
CPU share, and what a rank's writing loop is slowed by a recorder that drains it (ratio to
the same loop undrained, its spread, and undrained against undrained).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAKE = (sys.executable, str(ROOT / "tests/collect/fake_rank.py"))


def server(ranks: int, steps: int, step_us: int, obey: bool) -> list[str]:
    """``ranks`` fake ranks under one shell."""
    options = f"--steps {steps} --step-us {step_us} --blocks 16 --lines 512 --stalls 100"
    options += " --obey --wait-control" if obey else ""
    rank = f"{' '.join(FAKE)} {options} --rank $rank"
    return ["/bin/sh", "-c", f"for rank in $(seq 0 {ranks - 1}); do {rank} & done; wait"]


def environment(runtime: Path) -> dict[str, str]:
    """The recorder's environment, with a runtime directory of its own."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "MEGATRACE_RUNTIME_DIR": str(runtime)}


def recorded(folder: Path, every: str, command: list[str]) -> tuple[dict[str, object], float]:
    """One recording: its summary, and the CPU seconds of recorder and ranks together."""
    output = folder / "run.mtr"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = ("--force", "-o", str(output), "--every", every, "--json")
    done = subprocess.run(
        [sys.executable, "-m", "megatrace", "record", *options, "--", *command],
        env=environment(folder / "runtime"),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.returncode)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), cpu


def loop_seconds(folder: Path, steps: int, drained: bool) -> float:
    """How long one rank's loop takes for ``steps`` steps at full speed, drained or not."""
    clock = folder / "seconds"
    command = [*FAKE, "--steps", str(steps), "--step-us", "0", "--seconds", str(clock)]
    command += ["--blocks", "16", "--lines", "512"]
    if drained:
        recorded(folder, "1", command)
    else:
        session = folder / "undrained"
        session.mkdir(exist_ok=True)
        for ring in session.glob("*.ring"):
            ring.unlink()
        env = {**environment(folder), "MEGATRACE_SESSION": str(session)}
        subprocess.run(command, env=env, check=True)
    return float(clock.read_text())


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--step-us", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    steps = max(10, int(options.seconds * 1e6 / options.step_us))
    # The runtime directory must be shared memory, as it is for real ranks.
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="megatrace-bench-") as name:
        folder = Path(name)
        for every in ("1", "auto"):
            command = server(options.ranks, steps, options.step_us, obey=True)
            body, cpu = recorded(folder, every, command)
            seconds = float(str(body["elapsed_s"]))
            lines, lost = int(str(body["lines"])), int(str(body["lines_lost"]))
            print(
                f"{options.ranks} ranks, every {every}: {lines / seconds:,.0f} lines/s, "
                f"{lost:,} of {lines + lost:,} lines lost, "
                f"{int(str(body['size_bytes'])) / seconds / 1e6:.1f} MB/s, "
                f"{cpu / seconds:.2f} CPUs in all, N {body['every_n']}"
            )
        plain, again, drained = [], [], []
        for _ in range(options.repeat):
            plain.append(loop_seconds(folder, 4000, drained=False))
            drained.append(loop_seconds(folder, 4000, drained=True))
            again.append(loop_seconds(folder, 4000, drained=False))
        print(f"one rank, drained / undrained: {spread(ratios(drained, plain))}")
        print(f"one rank, undrained / undrained (A/A): {spread(ratios(again, plain))}")


def ratios(top: list[float], bottom: list[float]) -> list[float]:
    """Pair by pair."""
    return [a / b for a, b in zip(top, bottom, strict=True)]


if __name__ == "__main__":
    main()
