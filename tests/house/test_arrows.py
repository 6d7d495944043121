"""Imports go one way: a room may import the rooms listed beside it, and no other."""

from __future__ import annotations

import sys
import tomllib

from tests.house.tree import PACKAGE, ROOT, Module, modules

BASE = {"schema"}
MIDDLE = {"ring", "clock", "capture", "jit"}
UPPER = {"agent", "collect", "analysis"}

ARROWS = {
    "schema": set[str](),
    **{room: BASE for room in MIDDLE},
    **{room: BASE | MIDDLE for room in UPPER},
    "export": BASE | MIDDLE | {"analysis"},
    "tui": BASE | MIDDLE | {"analysis"},
    "bench": set[str](),
    "cli": BASE | MIDDLE | UPPER | {"export", "tui", "bench"},
    "muse": BASE | {"agent", "jit"},
    "sglang": BASE | {"agent", "jit", "muse"},
}
SHARED = {"documents", "errors", "paths", "sizes", "__version__"}
"""Modules and names of the package's root that every room may import."""

ROOMS_OF = {
    "click": {"cli"},
    "google": {"export"},
    "numpy": set(ARROWS) - {"cli", "sglang"},
    "nvtx": {"agent"},
    "pandas": {"analysis", "export", "cli", "tui"},
    "perfetto": {"export"},
    "plotly": {"export"},
    "pyarrow": {"capture", "analysis", "export"},
    "rich": {"cli", "tui"},
    "safetensors": {"muse"},
    "sglang": {"sglang"},
    "textual": {"tui"},
    "torch": {"muse"},
}
"""Third-party package -> the rooms that may import it."""

DISTRIBUTIONS = {"google": "protobuf"}
"""Import name -> name in pyproject.toml, where they differ."""

OPTIONAL = {"nvtx", "plotly", "safetensors", "sglang", "textual", "torch"}
"""Never imported with a module of a room that works without it."""

NEEDED = {
    "sglang": {"sglang"},
    "tui": {"textual"},
    "muse": {"safetensors", "torch"},
}
"""What a room does not work without, though the package does."""

WITHOUT_TORCH = {"events", "config", "params", "plan"}
"""Modules of ``muse`` that a machine without torch can import."""


def third_party(module: Module) -> set[str]:
    tops = {name.partition(".")[0] for name, _ in module.imports()}
    return tops - sys.stdlib_module_names - {"megatrace"}


def may_import(module: Module, target: str) -> bool:
    """Whether ``module`` may import ``megatrace.<target>``."""
    if target in SHARED or target in ("", module.room):
        return True
    if module.room == "":
        return module.name == "megatrace.__main__" and target == "cli"
    return target in ARROWS[module.room]


def test_a_room_imports_only_the_rooms_it_may() -> None:
    against = [
        f"{module.name} imports {name}"
        for module in modules()
        for name, _ in module.imports()
        if name.split(".")[0] == "megatrace" and not may_import(module, f"{name}.".split(".")[1])
    ]
    assert against == []


def test_a_third_party_package_stays_in_its_rooms() -> None:
    strays = [
        f"{module.name} imports {package}"
        for module in modules()
        for package in third_party(module)
        if module.room not in ROOMS_OF.get(package, ())
    ]
    assert strays == []


def test_an_optional_package_is_imported_only_where_it_is_used() -> None:
    eager = [
        f"{module.name} imports {name} at once"
        for module in modules()
        for name, at_import in module.imports()
        if at_import and name.partition(".")[0] in OPTIONAL - NEEDED.get(module.room, set())
    ]
    assert eager == []


def test_the_sizes_of_the_megakernel_need_no_torch() -> None:
    wanting = [
        f"{module.name} imports {name}"
        for module in modules()
        if module.room == "muse" and module.path.stem in WITHOUT_TORCH
        for name, at_import in module.imports()
        if at_import and name.partition(".")[0] in NEEDED["muse"]
    ]
    assert wanting == []


def test_every_room_has_its_arrows() -> None:
    rooms = {module.room for module in modules()} - {""}
    assert rooms <= set(ARROWS)


def test_everything_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        listed += extra
    declared = {requirement.split("[")[0].split(">")[0].split("=")[0] for requirement in listed}
    used = set().union(*(third_party(module) for module in modules()))
    # Whoever runs torch or SGLang has chosen its build: it is theirs to install, and brings
    # safetensors.
    used -= {"safetensors", "torch"}
    assert {DISTRIBUTIONS.get(name, name) for name in used} <= declared


def test_python_lives_only_in_the_package() -> None:
    strays = [p for top in ("kernels", "viewers") for p in (ROOT / top).rglob("*.py")]
    assert strays == []
    assert PACKAGE.is_dir()
