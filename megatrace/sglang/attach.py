"""Putting hooks into SGLang's HookRegistry, and checking that they got there.

SGLang logs and skips a hook that it cannot apply, and applies them after the plugin has
returned, before logging is set up. So each target is looked up before it is registered
and once more when the scheduler exists.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from megatrace.sglang.guard import reason


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook: the dotted target, ``around`` or ``after``, and what to call."""

    target: str
    kind: Literal["around", "after"]
    call: Callable[..., Any]


@dataclass(slots=True)
class Attachment:
    """Which targets are hooked and, with the reason, which are not."""

    originals: dict[str, object] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)

    @property
    def attached(self) -> list[str]:
        """Targets without their common prefix, in the order they were registered."""
        return [short(target) for target in self.originals]

    def verify(self) -> None:
        """Move the targets that SGLang did not hook to ``missed``; call it after it applied."""
        for target, original in list(self.originals.items()):
            if pkgutil.resolve_name(target) is original:
                self.miss(target, "SGLang's HookRegistry did not apply it; its log says why")

    def miss(self, target: str, why: str) -> None:
        """Note that ``target`` is not hooked, or no more."""
        self.originals.pop(target, None)
        self.missed[short(target)] = why


def attach(hooks: Iterable[Hook]) -> Attachment:
    """Register ``hooks``; a target this SGLang does not have is missed, not an error."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    kinds = {"around": HookType.AROUND, "after": HookType.AFTER}
    attachment = Attachment()
    for hook in hooks:
        try:
            original = pkgutil.resolve_name(hook.target)
            if not callable(original):
                raise TypeError(f"{hook.target} is no function")
            HookRegistry.register(hook.target, hook.call, kinds[hook.kind])
        except Exception as error:
            attachment.miss(hook.target, reason(error))
        else:
            attachment.originals[hook.target] = original
    return attachment


def short(target: str) -> str:
    """``package.module.Class.method`` as ``Class.method``."""
    return ".".join(target.rsplit(".", 2)[-2:])
