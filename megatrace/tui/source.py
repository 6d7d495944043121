"""What a screen asks of where its tables come from."""

from __future__ import annotations

from typing import Protocol

from megatrace.tui.model import Frame, Status


class Source(Protocol):
    """A live session or a capture."""

    name: str

    @property
    def steers(self) -> bool:
        """Whether there is a recorder that can be asked."""

    def poll(self) -> tuple[Status, Frame | None]:
        """How it stands now; the same frame again where nothing has changed."""

    def close(self) -> None:
        """Let go of it."""
