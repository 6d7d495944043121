"""Builds cases.cu once a session and flavour: plain, and under each sanitizer."""

from __future__ import annotations

import pytest

from tests.host.cases import Build, Cases, compile_cases


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a flavour of cases.cu, once."""
    folder = tmp_path_factory.mktemp("cases")
    built: dict[str, Cases] = {}

    def one(flavour: str) -> Cases:
        if flavour not in built:
            built[flavour] = compile_cases(flavour, folder / flavour)
        return built[flavour]

    return one


@pytest.fixture(scope="session")
def cases(build: Build) -> Cases:
    """The plain build."""
    return build("plain")
