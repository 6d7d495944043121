"""``megatrace info``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megatrace.cli.console import print_json, print_table
from megatrace.errors import ExitCode
from megatrace.schema.processes import label, process_of, rank_of
from megatrace.sizes import size_text

if TYPE_CHECKING:
    from megatrace.capture.reader import Capture

_DEVICES = {0: "cpu", 1: "cuda"}


@click.command("info")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Exit with 3 where the capture is incomplete.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(file: Path, strict: bool, as_json: bool) -> int:
    """What FILE holds: command, machine, ranks, loss, sizes, completeness."""
    from megatrace.capture.reader import open_capture

    with open_capture(file) as capture:
        facts = gather(capture)
    if as_json:
        print_json("info", facts)
    else:
        _print(facts)
    return int(ExitCode.INCOMPLETE if strict and not facts["complete"] else ExitCode.OK)


def gather(capture: Capture) -> dict[str, Any]:
    """The body of ``info --json``."""
    from megatrace.cli.asked import asked_of

    opening = next(iter(capture.facts("capture")), None)
    child = next(reversed(capture.facts("child")), None)
    head = opening.fields if opening else {}
    index = capture.line_index()
    ranks = [
        {
            "rank": rank_of(rank),
            "process": process_of(rank),
            "name": ring.name,
            "device": _DEVICES.get(ring.device, str(ring.device)),
            "blocks": ring.blocks,
            "warps": ring.warps,
            "lines_a_warp": ring.lines,
            "layers": ring.layers,
            "roles": list(dict.fromkeys(ring.roles)),
            "table": _table_name(capture, rank),
            "lines": int((index.rank == rank).sum()),
            "lines_lost": sum(n for (r, _), n in capture.loss.items() if r == rank),
        }
        for rank, ring in sorted(capture.rings.items())
        if ring.traced
    ]
    return {
        "path": str(capture.path),
        "size_bytes": capture.size_bytes,
        "complete": capture.complete,
        "recovered": capture.recovered,
        "problems": list(capture.problems),
        "megatrace": head.get("version"),
        "started_ns": head.get("started_ns"),
        "elapsed_s": capture.end.fields.get("elapsed_s") if capture.end else None,
        "command": head.get("command", []),
        "child_status": child.fields.get("status") if child else None,
        "options": head.get("options", {}),
        "recorded": asked_of(capture),
        "environment": head.get("environment", {}),
        "ranks": ranks,
        "lines": len(index),
        "lines_lost": sum(capture.loss.values()) if capture.lines_known else None,
        "host_records_lost": sum(int(r.fields.get("host_lost", 0)) for r in capture.facts("loss")),
        "facts": [
            {"rank": rank_of(row.rank), "process_of_rank": process_of(row.rank), **row.fields}
            for row in capture.facts("fact")
        ],
    }


def _table_name(capture: Capture, rank: int) -> str:
    import json

    try:
        return str(json.loads(capture.rings[rank].table)["name"])
    except (ValueError, KeyError, TypeError):
        return ""


def _print(facts: dict[str, Any]) -> None:
    state = "complete" if facts["complete"] else "incomplete"
    click.echo(f"{facts['path']}: {state}, {size_text(facts['size_bytes'])}")
    for problem in facts["problems"]:
        click.echo(f"  incomplete: {problem}")
    if facts["recovered"]:
        click.echo("  incomplete: recovered after its recorder was killed")
    lost = facts["lines_lost"]
    rows = [
        ("lines", f"{facts['lines']:,}"),
        ("lines lost", "unknown" if lost is None else f"{lost:,}"),
        ("host records lost", str(facts["host_records_lost"])),
        *facts["recorded"].items(),
        ("command", " ".join(map(str, facts["command"]))),
        ("program exit", _status(facts["child_status"])),
        ("started", _when(facts["started_ns"])),
        ("seconds", str(facts["elapsed_s"] or "unknown")),
        *_machine(facts),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        if value:
            click.echo(f"  {name.ljust(width)}  {value}")
    if facts["ranks"]:
        click.echo()
        _print_ranks(facts["ranks"])
    _print_attached(facts["facts"])


def _print_ranks(ranks: list[dict[str, Any]]) -> None:
    head = ("RANK", "DEVICE", "BLOCKS", "WARPS", "LAYERS", "LINES", "LOST", "TABLE", "ROLES")
    keys = ("rank", "device", "blocks", "warps", "layers", "lines", "lines_lost", "table")
    rows = [
        (
            label(rank["rank"], rank["process"]),
            *(str(rank[key]) for key in keys[1:]),
            ",".join(rank["roles"]),
        )
        for rank in ranks
    ]
    print_table(head, rows, indent="  ")


def _print_attached(facts: list[dict[str, Any]]) -> None:
    latest = {
        (str(fact.get("process")), fact["process_of_rank"], fact["rank"]): fact["value"]
        for fact in facts
        if fact.get("name") == "attach" and isinstance(fact.get("value"), dict)
    }
    for (process, of_rank, rank), value in sorted(latest.items()):
        targets = ", ".join(map(str, value.get("attached") or ())) or "the process alone"
        of = f"{process} of rank {label(rank, of_rank)}"
        click.echo(f"  {of}: {value.get('state', 'attached')} to {targets}")
        for target, why in (value.get("missed") or {}).items():
            click.echo(f"  {of}: not attached to {target}: {why}")


def _machine(facts: dict[str, Any]) -> list[tuple[str, str]]:
    found = facts["environment"]
    gpus: list[dict[str, Any]] = next(
        (f["value"]["gpus"] for f in facts["facts"] if f.get("name") == "gpus"), []
    )
    names = sorted({str(gpu.get("name")) for gpu in gpus})
    packages = found.get("packages", {})
    return [
        ("host", f"{found.get('host', '')} {found.get('kernel', '')}".strip()),
        ("GPUs", f"{len(gpus)} x {', '.join(names)}" if gpus else ""),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages.items())),
    ]


def _status(status: int | None) -> str:
    from megatrace.collect.launch import describe_exit

    return "unknown" if status is None else describe_exit(status)


def _when(started_ns: int | None) -> str:
    import time

    if started_ns is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(started_ns / 1e9))
