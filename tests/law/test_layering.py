"""Imports point down only: the house of docs/structure.md, read from the import statements."""

from __future__ import annotations

import ast
from pathlib import Path

import draftwing

PACKAGE = Path(draftwing.__file__).parent
# Rooms of one line never import each other; a room may import any line below its own.
LEVELS = (
    {"cli"},
    {"server"},
    {"report"},
    {"measure", "diagnose", "ledger"},
    {"engine", "train", "capture", "peers"},
    {"drafter", "target"},
    {"formats", "parallel", "ops", "native"},
    {"core"},
)


def _level(room: str) -> int:
    return next(number for number, rooms in enumerate(LEVELS) if room in rooms)


def _arrows() -> set[tuple[str, str, str]]:
    """(from room, to room, where) of every import of the package inside itself."""
    arrows = set()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        if room.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names = [node.module or ""]
            for name in names:
                parts = name.split(".")
                if parts[0] == "draftwing" and len(parts) > 1:
                    arrows.add((room, parts[1], f"{path.relative_to(PACKAGE)}:{node.lineno}"))
    return arrows


def test_imports_point_down_only() -> None:
    wrong = [
        f"{source} -> {to} at {where}"
        for source, to, where in _arrows()
        if source != to and _level(source) >= _level(to)
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_there_are_arrows_to_check() -> None:
    assert ("engine", "target") in {(source, to) for source, to, _ in _arrows()}


def test_core_does_not_import_torch() -> None:
    for path in (PACKAGE / "core").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.split(".")[0] == "torch" for module in modules), path
