"""Every public name says what it is; modules and functions stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.tree import Module, modules

MODULE_LINES = 400
FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Public classes, functions and methods, with their dotted names."""
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{prefix}{node.name}.")


def is_overload(node: ast.ClassDef | Function) -> bool:
    return any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)


def code_lines(function: Function) -> int:
    """Lines of a function without its docstring."""
    first = function.body[1 if ast.get_docstring(function) else 0 :]
    return 1 + (function.end_lineno or 0) - first[0].lineno if first else 0


def all_of(module: Module) -> list[str]:
    """The module's ``__all__``, empty where it has none."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def test_every_module_has_a_docstring() -> None:
    assert [m.name for m in modules() if not ast.get_docstring(m.tree)] == []


def test_every_public_name_has_a_docstring() -> None:
    bare = [
        f"{module.name}.{name}"
        for module in modules()
        for name, node in public(module.tree.body)
        if not ast.get_docstring(node) and not is_overload(node)
    ]
    assert bare == []


def test_a_list_of_public_names_is_true() -> None:
    invented = []
    for module in modules():
        defined = {n.id for n in ast.walk(module.tree) if isinstance(n, ast.Name)}
        defined |= {n.name for n in module.tree.body if isinstance(n, ast.ClassDef | Function)}
        defined |= {name.rpartition(".")[2] for name, _ in module.imports()}
        invented += [f"{module.name}.{name}" for name in all_of(module) if name not in defined]
    assert invented == []


def test_a_module_fits_in_the_head() -> None:
    lines = {m.name: len(m.path.read_text().splitlines()) for m in modules()}
    assert {name: count for name, count in lines.items() if count > MODULE_LINES} == {}


def test_a_function_fits_a_screen() -> None:
    lines = {
        f"{module.name}.{node.name}": code_lines(node)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    }
    assert {name: count for name, count in lines.items() if count > FUNCTION_LINES} == {}
