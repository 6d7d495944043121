"""The HTML of a page: text, plots and tables, one file that asks for nothing else.

Every text goes through :func:`text`. Its content security policy allows two scripts, by
their hashes, and no network.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from megatrace.errors import MegatraceError
from megatrace.export.html_figures import Figure
from megatrace.paths import asset_dir

MAX_ROWS = 400
"""Rows of a folded table; ``megatrace tables`` has all."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A table below a plot: what it is, and its rows; numbers as they are to be read."""

    title: str
    rows: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Section:
    """A plot or why there is none, what it says, and tables below it."""

    name: str
    title: str
    says: str
    figures: Sequence[Figure] = ()
    empty: str = ""
    """What stands there without figures."""
    folds: Sequence[Fold] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know before reading on; ``bad`` where data is missing or is no measure."""

    text: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """All of it."""

    title: str
    facts: Mapping[str, str]
    notes: Sequence[Note]
    sections: Sequence[Section]
    foot: str


def text(value: object) -> str:
    """``value`` as HTML shows it letter by letter."""
    return html.escape(str(value))


def to_html(page: Page) -> str:
    """The whole file. Raises MegatraceError where plotly is not installed."""
    assets = asset_dir() / "viewers" / "html"
    style, script = ((assets / name).read_text() for name in ("page.css", "page.js"))
    plotting = _plotly_js()
    policy = "; ".join((
        "default-src 'none'", f"script-src {_hash(plotting)} {_hash(script)}",
        # The plotting library styles its drawing as it goes.
        "style-src 'unsafe-inline'", "img-src data: blob:", "base-uri 'none'",
        "form-action 'none'",
    ))  # fmt: skip
    figures = {s.name: [f.to_dict() for f in s.figures] for s in page.sections if s.figures}
    return "\n".join((
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{text(page.title)}: megatrace</title>", f"<style>{style}</style>", "</head>",
        "<body>", _head(page), "<main>", *map(_section, page.sections), "</main>",
        f"<footer><p>{text(page.foot)}</p></footer>",
        f'<script type="application/json" id="figures">{_json(figures)}</script>',
        f"<script>{plotting}</script>", f"<script>{script}</script>", "</body>", "</html>", "",
    ))  # fmt: skip


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MegatraceError(
            "a page of plots needs plotly", hint="pip install 'megatrace[view]'"
        ) from None
    source: str = get_plotlyjs()
    return source


def _hash(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _json(value: object) -> str:
    """JSON in which nothing ends the script that it stands in."""
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        plain = plain.replace(sign, f"\\u{ord(sign):04x}")
    return plain


def _head(page: Page) -> str:
    facts = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
        for name, value in page.facts.items()
    )
    notes = "".join(
        f'<p class="note{" bad" if note.bad else ""}">{text(note.text)}</p>' for note in page.notes
    )
    links = "".join(f'<a href="#{text(s.name)}-section">{text(s.title)}</a>' for s in page.sections)
    return (
        f'<header><div class="bar"><h1>{text(page.title)}</h1>'
        '<button id="theme" type="button" hidden></button></div>'
        f'<dl class="facts">{facts}</dl>{notes}'
        '<noscript><p class="note">The plots need JavaScript; the tables below them do not.'
        f"</p></noscript><nav>{links}</nav></header>"
    )


def _section(section: Section) -> str:
    parts = [
        f'<section id="{text(section.name)}-section"><h2>{text(section.title)}</h2>',
        f'<p class="say">{text(section.says)}</p>' if section.says else "",
    ]
    if len(section.figures) > 1:
        names = "".join(f"<option>{text(figure.name)}</option>" for figure in section.figures)
        parts.append(
            f'<select data-for="{text(section.name)}" aria-label="{text(section.title)}" hidden>'
            f"{names}</select>"
        )
    if section.figures:
        parts.append(f'<div class="plot" id="{text(section.name)}"></div>')
    elif section.empty:
        parts.append(f'<p class="empty">{text(section.empty)}</p>')
    parts += [_fold(fold) for fold in section.folds if len(fold.rows)]
    return "".join([*parts, "</section>"])


def _fold(fold: Fold) -> str:
    shown = fold.rows.head(MAX_ROWS)
    words = [not pd.api.types.is_numeric_dtype(fold.rows[name]) for name in shown]
    head = "".join(map(_cell, ["th"] * len(words), shown.columns, words))
    body = "".join(
        "<tr>" + "".join(map(_cell, ["td"] * len(words), row, words)) + "</tr>"
        for row in shown.itertuples(index=False)
    )
    more = len(fold.rows) - len(shown)
    said = f"{fold.title}: {len(fold.rows):,} rows" + (f", the first {MAX_ROWS}" if more else "")
    return (
        f'<details><summary>{text(said)}</summary><div class="table"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _cell(tag: str, value: object, words: bool) -> str:
    if isinstance(value, float):
        value = "" if value != value else f"{value:,.2f}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    name = ' class="words"' if words else ""
    return f"<{tag}{name}>{text(value)}</{tag}>"
