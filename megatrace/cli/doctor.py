"""``megatrace doctor``."""

from __future__ import annotations

import click

from megatrace.cli.console import print_json, print_table
from megatrace.errors import ExitCode


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(as_json: bool) -> int:
    """Check what recording needs on this machine: a row each, with the fix.

    "fail" stops every recording (exit code 1); "warn" stops some of them.
    """
    from megatrace.cli.checks import run_checks

    checks = run_checks()
    failed = any(check.state == "fail" for check in checks)
    if as_json:
        print_json(
            "doctor",
            {
                "ok": not failed,
                "checks": [
                    {"name": c.name, "state": c.state, "found": c.found, "fix": c.fix}
                    for c in checks
                ],
            },
        )
    else:
        print_table(
            ("STATE", "CHECK", "FOUND", "FIX"), [(c.state, c.name, c.found, c.fix) for c in checks]
        )
    return int(ExitCode.ERROR if failed else ExitCode.OK)
