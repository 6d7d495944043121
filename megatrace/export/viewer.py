"""How a trace is opened in Perfetto's viewer: its address and what it does at first."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from urllib.parse import urlencode

from megatrace.paths import asset_dir

_PACKAGE = "megatrace"
_MODULE_PREFIX = "@"
_FIRST_RANK, _FIRST_SM = "rank 0*0", "^SM 0"
_INCLUDE = re.compile(r"^INCLUDE PERFETTO MODULE megatrace\.(\w+);\n+", re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class First:
    """The rank whose rows are opened, and which SM of it: the first that a trace has."""

    rank: int = 0
    sm: int = 0


def sql_package() -> Path:
    """The folder of the SQL modules, for ``trace_processor --add-sql-package``.

    Its name is the package's: ``INCLUDE PERFETTO MODULE megatrace.stalls;``.
    """
    return asset_dir() / "viewers" / "perfetto" / _PACKAGE


def sql_text() -> str:
    """All modules as one text that includes nothing, for a viewer that has no package.

    Without comments: it travels in an address.
    """
    modules = {path.stem: path.read_text() for path in sorted(sql_package().glob("*.sql"))}
    order = TopologicalSorter({name: _INCLUDE.findall(text) for name, text in modules.items()})
    text = "\n".join(modules[name] for name in order.static_order())
    return _COMMENT.sub("", _INCLUDE.sub("", text))


def startup_commands(first: First | None = None) -> list[dict[str, object]]:
    """What the viewer runs when it opens a trace: rows to expand and to pin, views, tables.

    From ``viewers/perfetto/startup.json``; an argument ``@megatrace`` there stands for
    :func:`sql_text`, and ``rank 0`` and ``SM 0`` for those of ``first`` (None: themselves).
    """
    first = first or First()
    text = (sql_package().parent / "startup.json").read_text()
    commands: list[dict[str, object]] = json.loads(text)
    for command in commands:
        args = command["args"]
        assert isinstance(args, list)
        command["args"] = [
            sql_text()
            if arg == _MODULE_PREFIX + _PACKAGE
            else str(arg)
            .replace(_FIRST_RANK, f"rank 0*{first.rank}")
            .replace(_FIRST_SM, f"^SM {first.sm}")
            for arg in args
        ]
    return commands


def viewer_address(root: str, trace_url: str, first: First | None = None) -> str:
    """The address that opens ``trace_url`` in the viewer served at ``root``.

    ``first`` as :func:`startup_commands` takes it. Both addresses must be of one origin: the
    viewer's content security policy allows no other.
    """
    query = {
        "url": trace_url,
        "hideSidebar": "true",
        "startupCommands": json.dumps(startup_commands(first), separators=(",", ":")),
    }
    return f"{root}/#!/?{urlencode(query)}"
