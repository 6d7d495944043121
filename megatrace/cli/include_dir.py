"""``megatrace include-dir``."""

from __future__ import annotations

from pathlib import Path

import click

import megatrace


@click.command("include-dir")
def command() -> None:
    """Print the folder of the CUDA headers: nvcc -I "$(megatrace include-dir)"."""
    click.echo(Path(megatrace.__file__).parent / "include")
