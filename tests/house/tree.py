"""The package's modules, as the house tests read them: parsed, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "megatrace"


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    path: Path

    @property
    def name(self) -> str:
        """Dotted: ``megatrace.ring.file``."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """First folder below the package; ``""`` for the modules of the root."""
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.path.read_text(), str(self.path))

    def imports(self) -> Iterator[tuple[str, bool]]:
        """(dotted name, whether it is imported with the module) of every import.

        ``from a import b`` gives ``a.b``. What stands under ``if TYPE_CHECKING:`` counts
        as not imported, for it is not.
        """
        yield from _imports(self.tree, self.name, self.path.name == "__init__.py", True)


def _imports(
    node: ast.AST, module: str, is_package: bool, eager: bool
) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, eager) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                up = module.split(".")
                up = up[: len(up) - child.level + is_package]
                base = ".".join([*up, base] if base else up)
            yield from ((f"{base}.{alias.name}", eager) for alias in child.names)
        else:
            lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            yield from _imports(child, module, is_package, eager and not lazy)


def modules() -> list[Module]:
    """Every module of the package, in the order of names."""
    return [Module(path) for path in sorted(PACKAGE.rglob("*.py")) if "_assets" not in path.parts]
