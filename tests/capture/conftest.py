"""Fixtures of capture: the tiny target loaded once, and its tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwing.target.load import Target, load_target
from draftwing.target.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def target(tiny_folder: Path) -> Target:
    return load_target(str(tiny_folder), "float32", "cpu")


@pytest.fixture(scope="session")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer(tiny_folder)
