"""What a server gives out, as its host's steps say it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from megatrace.schema import HOST

_DECODE, _VERIFY = (next(e.id for e in HOST if e.name == name) for name in ("decode", "verify"))
_BATCH, _ACCEPTED = 0, 3


class Served:
    """Sums over the steps of one process.

    Attributes:
        tokens: given out: one a request and decode, those accepted of a verify.
        verified: requests of verifies whose accept length is known.
        accepted: tokens those accepted, bonus included.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self.tokens = 0
        self.verified = 0
        self.accepted = 0

    def feed(self, records: NDArray[Any]) -> None:
        """Take HOST_RECORDs ``(n,)``."""
        batch, accepted = records["values"][:, _BATCH], records["values"][:, _ACCEPTED]
        told = (records["event"] == _VERIFY) & (batch > 0) & (accepted >= 0)
        decoded = (records["event"] == _DECODE) & (batch > 0)
        self.verified += int(batch[told].sum())
        self.accepted += int(accepted[told].sum())
        self.tokens += int(accepted[told].sum()) + int(batch[decoded].sum())
