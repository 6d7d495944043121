"""What a capture keeps of the machine."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from megatrace.collect.environment import GpuQuery, gather, kept_variables, parse_gpus

ROW = "0, NVIDIA H200, GPU-1234, 580.65, 143771, 1980, 345"


def test_only_variables_that_steer_the_run_are_kept() -> None:
    env = {"MEGATRACE_X": "1", "SGLANG_Y": "2", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/root"}
    assert kept_variables(env) == {"CUDA_VISIBLE_DEVICES": "3", "MEGATRACE_X": "1", "SGLANG_Y": "2"}


def test_the_values_of_secrets_are_not_kept() -> None:
    assert kept_variables({"SGLANG_API_KEY": "abc"}) == {"SGLANG_API_KEY": "***"}


def test_the_environment_names_its_python_and_packages() -> None:
    found = gather({})
    assert found["python"]
    assert "numpy" in found["packages"]  # type: ignore[operator]


def test_gpus_are_told_by_name() -> None:
    assert parse_gpus(ROW + "\n") == [
        {
            "index": "0",
            "name": "NVIDIA H200",
            "uuid": "GPU-1234",
            "driver_version": "580.65",
            "memory.total": "143771",
            "clocks.max.sm": "1980",
            "clocks.sm": "345",
        }
    ]
    assert parse_gpus("No devices were found\n") == []


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_the_gpu_query_answers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, f"echo '{ROW}'")
    query = GpuQuery()
    deadline = time.monotonic() + 10
    while (found := query.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found is not None
    assert found[0]["name"] == "NVIDIA H200"
    assert query.poll() is None


def test_a_gpu_query_that_fails_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_smi(tmp_path, monkeypatch, "exit 9")
    query = GpuQuery()
    time.sleep(0.3)
    assert query.poll() is None


def test_a_gpu_query_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, "exec sleep 60")
    query = GpuQuery()
    assert query.poll() is None
    query.close()
    assert query.poll() is None


def test_a_machine_without_the_tool_has_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert GpuQuery().poll() is None
