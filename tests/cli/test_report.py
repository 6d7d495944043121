"""``megatrace report``: of which layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analysis.small import MUSE
from tests.collect.helpers import megatrace


def test_a_list_of_layers_narrows_every_table_of_launches_and_the_head_says_so() -> None:
    done = megatrace("report", MUSE, "--layer", "0,2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("layers 0, 2 alone, of 0-2")
    body = json.loads(megatrace("report", MUSE, "--json", "--layer", "1-2").stdout)
    assert body["layers"] == {"chosen": [1, 2], "there": [0, 1, 2]}
    assert {row["layer"] for table in ("kernels", "events") for row in body[table]} == {1, 2}


@pytest.mark.parametrize(
    ("layers", "cause", "hint"),
    [
        ("1,77", f"{MUSE} has no layer 77", "it has layers 0-2"),
        ("3-5", f"{MUSE} has no layers 3-5", "it has layers 0-2"),
        ("one", "--layer one: 'one' is no layer below 65536", "--layer 0-3,7"),
        ("2-0", "--layer 2-0: '2-0' is no layer below 65536", "--layer 0-3,7"),
    ],
)
def test_layers_that_are_not_there_are_refused_in_one_line(
    layers: str, cause: str, hint: str
) -> None:
    done = megatrace("report", MUSE, "--layer", layers)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"megatrace: error: {cause}", f"megatrace: hint: {hint}"]
    assert done.stdout == ""


def test_no_page_is_begun_of_a_layer_that_is_not_there(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    done = megatrace("report", MUSE, "--layer", "77", "--html", page)
    assert done.returncode == 2
    assert f"{MUSE} has no layer 77" in done.stderr
    assert not page.exists()
    done = megatrace("report", MUSE, "--layer", "1", "--html", page)
    assert done.returncode == 0, done.stderr
    assert "layer 1 alone, of 0-2" in page.read_text()
