"""How a trace is opened in Perfetto's viewer: its address and what it does at first."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from megatrace.paths import asset_dir

_FILE_PREFIX = "@"


def startup_commands() -> list[dict[str, object]]:
    """What the viewer runs when it opens a trace: rows to expand, views, a first table.

    From ``viewers/perfetto/startup.json``; an argument ``@name`` there stands for the
    text of the file ``name`` beside it.
    """
    folder = asset_dir() / "viewers" / "perfetto"
    commands: list[dict[str, object]] = json.loads((folder / "startup.json").read_text())
    for command in commands:
        args = command["args"]
        assert isinstance(args, list)
        command["args"] = [
            (folder / arg.removeprefix(_FILE_PREFIX)).read_text()
            if arg.startswith(_FILE_PREFIX)
            else arg
            for arg in args
        ]
    return commands


def viewer_address(root: str, trace_url: str) -> str:
    """The address that opens ``trace_url`` in the viewer served at ``root``.

    Both must be of one origin: the viewer's content security policy allows no other.
    """
    query = {
        "url": trace_url,
        "hideSidebar": "true",
        "startupCommands": json.dumps(startup_commands(), separators=(",", ":")),
    }
    return f"{root}/#!/?{urlencode(query)}"
