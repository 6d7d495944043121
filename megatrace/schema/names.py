"""Which names events and tables can have, to be types and namespaces of a CUDA header."""

from __future__ import annotations

_MEMBERS = ("id", "kind", "cause", "name", "args", "kFirstUse")
"""What each event's type has."""

_USED = ("Kind", "Cause", "kTableHash", "uint32_t", "uint64_t")
"""What means something else in the header."""

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue decltype default delete do double dynamic_cast else enum explicit export
extern false float for friend goto if inline int long mutable namespace new noexcept not
not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
return short signed sizeof static static_assert static_cast struct switch template this
thread_local throw true try typedef typeid typename union unsigned using virtual void volatile
wchar_t while xor xor_eq
"""


def refused_name(name: str, *, event: bool = True) -> str:
    """Why no type (``event``) or namespace can have this name, to be read after it; else empty."""
    needed = (*_MEMBERS, *_USED) if event else _USED
    if name in needed:
        return f"is one of {', '.join(needed)}, which the header needs"
    if name in _KEYWORDS.split():
        return "is a keyword of C++"
    if not name.isidentifier() or not name.isascii() or name.startswith("__"):
        return "is no C++ identifier of your own"
    return ""
