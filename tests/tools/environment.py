"""Makes the virtual environment that `make` works in, and says what it is doing.

Usage: python environment.py DIR REQUIREMENT...   (from the repository's root)

Needs nothing but the standard library. pip's own talk goes to build/pip.log.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LOG = Path("build/pip.log")
TTY_EVERY_S = 0.5
PLAIN_EVERY_S = 15.0


def say(text: str) -> None:
    """One line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def works(python: Path) -> bool:
    """Whether this interpreter starts: a virtual environment that was moved does not."""
    try:
        return subprocess.run([python, "-c", "import pip"], capture_output=True).returncode == 0
    except OSError:
        return False


def create(target: Path) -> None:
    """An empty environment at ``target``, unless a working one is there."""
    if works(target / "bin" / "python"):
        return
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        sys.exit(
            f"megatrace: {sys.executable} cannot make a virtual environment: "
            "on Debian or Ubuntu run `sudo apt-get install python3-venv`, then make again"
        )
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", target], check=True)


def progress(lines: Iterator[str]) -> None:
    """Follow pip: one line rewritten on a terminal, else one line now and then."""
    tty = sys.stderr.isatty()
    began = told = time.monotonic()
    packages = 0
    doing = "looking for packages"
    with LOG.open("w") as log:
        for line in lines:
            log.write(line)
            log.flush()
            word, _, rest = line.strip().partition(" ")
            if word == "Collecting":
                packages += 1
                doing = f"fetching {rest.split()[0]}"
            elif word == "Installing":
                doing = "unpacking"
            now = time.monotonic()
            if now - told < (TTY_EVERY_S if tty else PLAIN_EVERY_S):
                continue
            told = now
            text = f"  {now - began:.0f} s, {packages} packages, {doing}"
            if tty:
                print(f"\r{text[:78]:<78}", end="", file=sys.stderr, flush=True)
            else:
                say(text)
    if tty:
        print(f"\r{'':<78}\r", end="", file=sys.stderr)


def install(target: Path, requirements: list[str]) -> None:
    """pip-install ``requirements``, editable where they name this repository."""
    arguments: list[str] = []
    for requirement in requirements:
        arguments += ["--editable", requirement] if requirement.startswith(".") else [requirement]
    command = [str(target / "bin" / "python"), "-m", "pip", "install", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", *arguments]
    LOG.parent.mkdir(exist_ok=True)
    pip = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert pip.stdout is not None
    progress(iter(pip.stdout))
    if pip.wait() != 0:
        tail = LOG.read_text().splitlines()[-12:]
        say("\n".join(tail))
        sys.exit(f"megatrace: pip could not install {' '.join(requirements)}; all it said: {LOG}")


def main() -> None:
    """Make or update the environment named on the command line."""
    target, *requirements = sys.argv[1:]
    began = time.monotonic()
    say(f"Setting up {target} for {' '.join(requirements)} (once, about a minute)")
    create(Path(target))
    install(Path(target), requirements)
    say(f"Ready after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
