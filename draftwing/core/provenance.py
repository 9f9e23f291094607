"""The birth certificate of a figure: machine, versions, commit, command, date. No torch import."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from draftwing import __version__
from draftwing.core.machine import Machine, this_machine

_PACKAGES = ("torch", "transformers", "numpy", "scipy", "safetensors")


class Provenance(BaseModel):
    """Where and how a figure was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: str
    command: list[str]
    draftwing: str
    commit: str | None
    python: str
    packages: dict[str, str]
    system: str
    machine: Machine
    threads: int


def here(threads: int) -> Provenance:
    """The certificate of this process; `threads` is what its arithmetic uses."""
    return Provenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=["draftwing", *sys.argv[1:]],
        draftwing=__version__,
        commit=_commit(),
        python=platform.python_version(),
        packages={name: found for name in _PACKAGES if (found := _version(name))},
        system=f"{platform.system()} {platform.machine()}",
        machine=this_machine(threads),
        threads=threads,
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this source tree, marked when it has changes; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
