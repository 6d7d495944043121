"""How many bytes, as people read it."""

from __future__ import annotations


def size_text(size_bytes: float) -> str:
    """``48 MB``: powers of a thousand."""
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size_bytes < 999.5:
            break
        size_bytes, unit = size_bytes / 1000, larger
    return f"{size_bytes:.3g} {unit}"
