"""Removes the tracer from a kernel's source, leaving what a person would have written without it.

    template <class T> void f(T& t, Work w)   ->  void f(Work w)
    t.wait(ev::full{}, bar, parity, ...)      ->  megatrace::mbar_wait("full", bar, parity)
    stalled = t.wait_later(ev::full{}, b, p)  ->  megatrace::mbar_wait("full", b, p)
    t.poll(ev::partials{}, slot, ready, ...)  ->  megatrace::poll("partials", slot, ready)
    Launch<T> launch(trace);                  ->  nothing
    launch.run([&](auto& t) { ... });         ->  [&] { ... }();
    every other call of t, every Stalled      ->  nothing

A kernel that hands events on, from function to function or in a variable, keeps their types and
is named by them: ``t.poll(wait, ...)`` becomes ``megatrace::poll((wait).name, ...)``.

Usage: python -m tests.tools.strip_tracer KERNEL.cu
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

PAIRS = {"(": ")", "{": "}", "[": "]"}


def closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start``."""
    stack = []
    for at in range(start, len(text)):
        if text[at] in PAIRS:
            stack.append(PAIRS[text[at]])
        elif stack and text[at] == stack[-1]:
            stack.pop()
            if not stack:
                return at
    raise ValueError(f"unbalanced: {text[start : start + 60]!r}")


def arguments(text: str) -> list[str]:
    """The top-level arguments of a call; commas inside brackets do not count."""
    found, start, at = [], 0, 0
    while at < len(text):
        if text[at] in PAIRS:
            at = closing(text, at)
        elif text[at] == ",":
            found.append(text[start:at].strip())
            start = at + 1
        at += 1
    return [*found, text[start:].strip()]


def replacement(method: str, args: list[str], name: Callable[[str], str]) -> str:
    """What stands for ``t.method(args)`` where there is no tracer."""
    if method in ("wait", "wait_later"):
        return f"megatrace::mbar_wait({name(args[0])}, {args[1]}, {args[2]})"
    if method == "poll":
        return f"megatrace::poll({name(args[0])}, {args[1]}, {args[2]})"
    return ""


def event_name(event: str) -> str:
    """``"full"`` for ``ev::full{}``."""
    match = re.fullmatch(r"(?:\w+::)*(\w+)\{\}", event)
    if match is None:
        raise ValueError(f"not an event: {event!r}")
    return f'"{match.group(1)}"'


def strip_calls(text: str, tracer: str, name: Callable[[str], str]) -> str:
    """Rewrite every call of the tracer object, with what its result is put into.

    ``name`` makes what a wait is called of its event.
    """
    call = re.compile(
        r"(?:(?:const\s+)?(?:auto|Stalled)\s+\w+\s*=\s*|\w+\s*=\s*)?"
        rf"\b{tracer}\.(?:template\s+)?(\w+)\("
    )
    out, at = [], 0
    while match := call.search(text, at):
        end = closing(text, match.end() - 1)
        inside = strip_calls(text[match.end() : end], tracer, name)
        out += [text[at : match.start()], replacement(match.group(1), arguments(inside), name)]
        at = end + 1
    return "".join([*out, text[at:]])


def strip_launch(text: str, tracer: str, policy: str) -> str:
    """Without the choice of a level: what it would run is called as it is."""
    made = re.search(rf"\b(?:megatrace::)?Launch<{policy}> (\w+)\(\w+\);", text)
    if made is None:
        return text
    text = text.replace(made.group(), "")
    call = re.search(rf"\b{made.group(1)}\.run\((\[&\])\(auto& {tracer}\) ", text)
    if call is None:
        raise ValueError(f"{made.group()!r} runs nothing that can be stripped")
    end = closing(text, text.index("(", call.start()))
    return text[: call.start()] + "[&] " + text[call.end() : end] + "()" + text[end + 1 :]


def strip(source: str, *, tracer: str = "t", policy: str = "T", keep_events: bool = False) -> str:
    """``source`` without its tracer; ``tracer`` and ``policy`` are its object and its type.

    ``keep_events``: the types of events stay, for kernels that hand them on.
    Raises ValueError where something of the tracer would be left behind.
    """
    text = re.sub(r"//[^\n]*", "", source)
    text = text.replace('#include "megatrace/tracer.cuh"', '#include "megatrace/sync.cuh"')
    if not keep_events:
        text = re.sub(r'#include "\w+_events.cuh"\n', "", text)
        text = re.sub(r"namespace \w+ = (?:\w+::)*events::\w+;\n", "", text)
    text = re.sub(rf"\btemplate <class {policy}>\s*", "", text)
    among_others = rf"(\btemplate <[^;{{}}]*?)(?:\bclass {policy}, |, class {policy}\b)"
    text = re.sub(among_others, r"\1", text)
    text = re.sub(rf",\s*(?:const\s+)?typename {policy}::Params (\w+)\)", ")", text)
    text = re.sub(rf"\b{policy} {tracer}\(\w+\);", "", text)
    text = strip_launch(text, tracer, policy)
    text = strip_calls(text, tracer, (lambda e: f"({e}).name") if keep_events else event_name)
    text = re.sub(rf"\b{policy}& {tracer}(?:,\s*)?", "", text)
    text = re.sub(rf"\(\s*{tracer}(?:,\s*|(?=\)))", "(", text)
    text = re.sub(r"\b(?:megatrace::)?Stalled (\w+)( = \{[^;]*\})?;", "", text)
    text = re.sub(r"\bstalled_? = \{[^;]*\};", "", text)
    events = "" if keep_events else "|ev::"
    left = re.search(rf"\b(?:{tracer}\.\w|{policy}::|Tracer\b|Stalled\b{events}).*", text)
    if left:
        raise ValueError(f"still traced: {left.group(0)!r}")
    return text


def main() -> None:
    """Print a stripped source."""
    sys.stdout.write(strip(Path(sys.argv[1]).read_text()))


if __name__ == "__main__":
    main()
