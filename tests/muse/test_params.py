from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from megatrace.errors import UsageError
from megatrace.muse import params
from megatrace.muse.events import PHASES
from megatrace.muse.params import Handoff, Params, Phase, Shape, make_shape
from megatrace.paths import asset_dir
from tests.muse.models import model

HEADER = asset_dir() / "kernels" / "sm103" / "params.cuh"
RENAMED = {"into": "in"}
STRUCTS = (
    *("Shape", "LayerWeights", "KvCache", "Handoff", "Exchange", "Params"),
    *("Integers", "StepInputs", "StepOutput"),
)


def small(rows: int = 3) -> Shape:
    return make_shape(model(), model().shard(1, 2, True), rows, max_splits=5)


def test_phases_are_those_of_the_table_of_events() -> None:
    assert [phase.name.lower() for phase in Phase] == list(PHASES)
    source = HEADER.read_text()
    enum = source[source.index("enum Phase") : source.index("kPhases")]
    names = re.findall(r"^\s*k(\w+),", enum, re.MULTILINE)
    assert [name.lower() for name in names] == [
        phase.name.replace("_", "").lower() for phase in Phase
    ]


@pytest.fixture(scope="module")
def header_says(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """sizeof and offsetof of everything in params.cuh, from a C++ compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler, "a C++ compiler is needed"
    lines = []
    for struct in STRUCTS:
        lines.append(f'std::printf("{struct} %zu\\n", sizeof(muse::{struct}));')
        for name, _ in getattr(params, struct)._fields_:
            member = RENAMED.get(name, name)
            lines.append(
                f'std::printf("{struct}.{name} %zu\\n", offsetof(muse::{struct}, {member}));'
            )
    folder = tmp_path_factory.mktemp("layout")
    (folder / "say.cpp").write_text(
        "#include <cstddef>\n#include <cstdint>\n#include <cstdio>\n"
        "struct alignas(16) uint4 { uint32_t x, y, z, w; };\n"
        f'#include "{HEADER}"\nint main() {{\n' + "\n".join(lines) + "\n}\n"
    )
    program = folder / "say"
    subprocess.run([compiler, "-std=c++17", "-o", program, folder / "say.cpp"], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in (line.split() for line in said.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_a_mirror_lies_as_the_header_has_it(name: str, header_says: dict[str, int]) -> None:
    struct = getattr(params, name)
    mirrored = {f"{name}.{field}": getattr(struct, field).offset for field, _ in struct._fields_}
    mirrored[name] = ctypes.sizeof(struct)
    assert mirrored == {k: v for k, v in header_says.items() if k.partition(".")[0] == name}


def test_a_mirror_leaves_out_no_field_of_the_header() -> None:
    source = re.sub(r"//[^\n]*", "", HEADER.read_text())
    for name in STRUCTS:
        body = re.search(rf"struct {name} \{{(.*?)\}};", source, re.DOTALL)
        assert body is not None
        declarations = body[1].replace("[kMaxRanks]", "").split(";")
        names = [
            re.sub(r".*[\s*]", "", declarator.strip())
            for declaration in declarations
            if declaration.strip()
            for declarator in declaration.split(",")
        ]
        mirrored = [RENAMED.get(field, field) for field, _ in getattr(params, name)._fields_]
        assert mirrored == names


def test_a_shape_states_the_rank_and_the_step() -> None:
    shape = small()
    stated = (shape.rows, shape.heads, shape.kv_heads, shape.local_experts, shape.first_expert)
    assert stated == (3, 4, 1, 8, 8)
    assert (shape.rank, shape.ranks, shape.max_splits) == (1, 2, 5)
    assert shape.softmax_scale == pytest.approx(5.5 / 8)
    with pytest.raises(UsageError):
        small(rows=17)


def test_hand_offs_lie_side_by_side_and_aligned() -> None:
    shape = small()
    shapes = params.handoff_shapes(shape)
    assert list(shapes) == [name for name, _ in Handoff._fields_]
    offsets, words = params.handoff_offsets(shape)
    assert all(offset % 4 == 0 for offset in offsets.values())
    ends = [offsets[name] + int(np.prod(shapes[name])) for name in shapes]
    begins = [*list(offsets.values())[1:], words]
    assert all(0 <= begin - end < 4 for end, begin in zip(ends, begins, strict=True))


def test_a_buffer_is_cut_into_hand_offs() -> None:
    shape = small()
    _, words = params.handoff_offsets(shape)
    room = np.full(words + 8, -1, np.int32)
    buffer = room[-room.ctypes.data % 16 // 4 :]
    handoff, vectors = params.cut_handoff(shape, buffer)
    assert vectors == words // 4
    views = params.handoff_views(shape, buffer)
    for name, view in views.items():
        assert getattr(handoff, name) == view.ctypes.data
        assert getattr(handoff, name) % 16 == 0
    assert views["qkv_part"].shape == (1, 3, (2 * 4 + 2 * 1) * 64)
    with pytest.raises(UsageError, match="are needed"):
        params.cut_handoff(shape, buffer[: words - 1])


def test_weights_of_the_next_layer_stand_beside_those_of_this_one() -> None:
    names = {name.removeprefix("next_") for name, _ in params.LayerWeights._fields_}
    this = SimpleNamespace(**{name: np.zeros(4, np.float32) for name in names})
    after = SimpleNamespace(**{name: np.zeros(4, np.float32) for name in names})
    this.up_scale = None
    weights = params.layer_weights(this, after)
    assert weights.o_proj == this.o_proj.ctypes.data
    assert weights.next_qkv == after.qkv.ctypes.data
    assert weights.next_input_gain == after.input_gain.ctypes.data
    assert weights.up_scale is None
    last = params.layer_weights(this, None)
    assert last.next_qkv is None
    assert last.next_input_gain is None


def test_a_kernel_of_other_sources_is_refused() -> None:
    def built_with(count: int) -> SimpleNamespace:
        return SimpleNamespace(muse_params_bytes=lambda: count)

    params.check_layout(built_with(ctypes.sizeof(Params)))
    with pytest.raises(UsageError, match=r"Params have 8 bytes"):
        params.check_layout(built_with(8))


def test_the_parameter_fits_a_launch() -> None:
    # CUDA passes 4 KB to every chip; the tracer's own parameter comes on top.
    assert ctypes.sizeof(Params) < 3 * 1024


def test_the_header_is_where_the_package_looks_for_it() -> None:
    assert Path(HEADER).is_file()
