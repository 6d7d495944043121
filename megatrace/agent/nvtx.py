"""The host spans once more, as NVTX ranges of the domain ``megatrace``.

For people who look at the same run in Nsight Systems. Without the ``nvtx`` package, or
with no tool attached, a bridge does nothing and costs a compare.
"""

from __future__ import annotations

from typing import Any

DOMAIN = "megatrace"


class NvtxBridge:
    """Pushes and pops ranges on the calling thread; never raises once it is loaded.

    ``state`` says in words whether ranges reach anyone: ``on``, ``no tool attached``,
    or why there are none.
    """

    __slots__ = ("_attributes", "_domain", "state")

    def __init__(self, domain: Any, state: str) -> None:
        self._domain = domain
        self._attributes: dict[str, Any] = {}
        self.state = state

    @classmethod
    def load(cls) -> NvtxBridge:
        """A bridge to the ``nvtx`` package where there is one, else one that does nothing."""
        try:
            import nvtx

            domain = nvtx.get_domain(DOMAIN)
        except ImportError:
            return cls(None, "no nvtx package")
        except Exception as error:
            return cls(None, f"nvtx failed: {type(error).__name__}: {error}")
        if type(domain).__name__ == "DummyDomain":
            return cls(None, "no tool attached")
        return cls(domain, "on")

    @property
    def active(self) -> bool:
        """Whether a push reaches a tool."""
        return self._domain is not None

    def push(self, name: str, payload: int = 0) -> None:
        """Open a range. ``name`` must come from a small set: NVTX keeps each one for ever."""
        if self._domain is None:
            return
        try:
            attributes = self._attributes.get(name)
            if attributes is None:
                attributes = self._domain.get_event_attributes(message=name, payload=payload)
                self._attributes[name] = attributes
            else:
                attributes.payload = payload
            self._domain.push_range(attributes)
        except Exception as error:
            self._fail(error)

    def pop(self) -> None:
        """Close the range opened last on this thread."""
        if self._domain is None:
            return
        try:
            self._domain.pop_range()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._domain = None
        self.state = f"nvtx failed: {type(error).__name__}: {error}"
