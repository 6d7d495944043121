"""Small windows over a screen: a choice, a line of input, the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option


class Ask(ModalScreen[str | None]):
    """Asks for one line; None where it was left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def __init__(self, title: str, hint: str, value: str = "") -> None:
        super().__init__()
        self._title = title
        self._hint = hint
        self._value = value

    def compose(self) -> ComposeResult:
        """Title, hint, input."""
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield Input(self._value, select_on_focus=False)
            yield Static(self._hint, classes="dialog-hint", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the line."""
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Take nothing."""
        self.dismiss(None)


class Choose(ModalScreen[str | None]):
    """Asks for one of some; None where it was left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def __init__(self, title: str, options: Sequence[tuple[str, str]], chosen: str = "") -> None:
        """``options`` are ids and what is shown for each."""
        super().__init__()
        self._title = title
        self._options = options
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """Title and list."""
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield OptionList(*(Option(text, id=key) for key, text in self._options), markup=False)

    def on_mount(self) -> None:
        """Begin at what is chosen now."""
        keys = [key for key, _ in self._options]
        self.query_one(OptionList).highlighted = (
            keys.index(self._chosen) if self._chosen in keys else 0
        )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take it."""
        self.dismiss(event.option.id)

    def action_leave(self) -> None:
        """Take nothing."""
        self.dismiss(None)


class Help(ModalScreen[None]):
    """What the keys do and what the columns mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "leave", "Close")
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The text."""
        with VerticalScroll(classes="dialog help"):
            yield Static(self._text, markup=False)

    def action_leave(self) -> None:
        """Close it."""
        self.dismiss(None)


_EVERYWHERE = """\
Keys
  enter        open: layer -> role or SM -> warps in time
  escape       back
  1 2 3        layers, ranks, map of SMs           tab  next table
  s  S         sort by the next, the last column   /    show only some rows
  r            next rank, then all together        t    light or dark
  ?  ctrl+p    this text; every command by name    q    quit
"""
_LIVE = """\
  space        freeze what is shown; the recording goes on
  w            tables of the last 2 s, 10 s, 60 s, or of all since the start
  l  e         level; timeline on one step in N
  p  x         window of steps; which SMs record
  b  o         burst: every step for a while, to a file of its own; open it
  n            another session of this host

Asking changes what the recorder does, for every viewer and for its file.
"""
_CAPTURE = """\
  [  ]         step before, next step; all steps before the first
  space        play, step by step
  + - 0  n     warps in time: zoom in, out, all of it; next stall
"""
_WORDS = """
Columns
  us/launch    capture: first warp in to last warp out, median of the launches
               live: a warp's mean time in a launch, of the role that takes longest
  warp time    what the warps of a layer do, by cause:
               data         bytes asked for have not arrived
               space        no free stage: the consumer is behind
               input        another block has not handed over
               peer         another GPU has not
               not waiting  the rest, and waits that leave no record (block barriers,
                            cp.async, wgmma)
  sync         mean time a warp waits for input or peer in a launch
  late         prefetches whose first use was blocked, of all; +n?: no use was seen
               live: share of first uses that were blocked
  trend        time of a launch, oldest to newest
Live tables are of the steps that have a timeline. Where there are none, they are of the
counters: shares of stall time, since counters do not know the time beside it.
Times of a host build (cpu) are no verdict on a kernel.
"""


def help_text(*, live: bool) -> str:
    """All of it, for a live session or a capture."""
    return _EVERYWHERE + (_LIVE if live else _CAPTURE) + _WORDS
