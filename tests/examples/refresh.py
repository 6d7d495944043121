"""Rewrites what the course's pages show as printed with what their commands print today.

    python -m tests.examples.refresh [NAME ...]

A line that is no longer printed becomes the printed line of the same row. Read the changes, and
mend the sentences that quote the old figures.
"""

from __future__ import annotations

import difflib
import re
import sys
import tempfile
from pathlib import Path

from tests.examples.course import PAGES, Command, Page, Shell, missing


def refreshed(command: Command, output: str) -> dict[str, str]:
    """Line shown -> line printed, where they differ."""
    printed = [line.rstrip() for line in output.splitlines()]
    changed: dict[str, str] = {}
    for line in command.expected:
        if line.strip() in ("", "...") or "…" in line:
            continue
        alone = Command(command.text, (line,), varies=command.varies)
        if missing(alone, output) is None:
            continue
        free = [other for other in printed if other and other not in changed.values()]
        alike = [other for other in free if other.split()[0] == line.split()[0]]
        if alike:
            changed[line] = max(alike, key=lambda other: likeness(line, other))
    return changed


def likeness(shown: str, printed: str) -> tuple[float, float]:
    """How much two lines are of the same row: by their words, then by their figures."""
    words = [re.sub(r"[\d.,+-]+", "0", line).split() for line in (shown, printed)]
    by_words = difflib.SequenceMatcher(None, words[0], words[1]).ratio()
    return by_words, difflib.SequenceMatcher(None, shown, printed).ratio()


def main() -> None:
    for name in sys.argv[1:] or PAGES:
        page = Page.of(name)
        text = page.text
        with tempfile.TemporaryDirectory() as folder:
            shell = Shell(Path(folder))
            try:
                for command in page.commands:
                    for old, new in refreshed(command, shell.run(command)).items():
                        sys.stdout.write(f"{page.path}\n- {old}\n+ {new}\n")
                        text = text.replace(f"{old}\n", f"{new}\n")
            finally:
                shell.close()
        page.path.write_text(text)


if __name__ == "__main__":
    main()
