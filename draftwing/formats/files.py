"""Files that are either whole or absent: atomic writes, digests, disk room, JSON with a clear error."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from draftwing.core.errors import UserError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes the name at once, on failure it is removed."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise UserError(
            f"Writing {path} failed: {error.strerror or error}.", "Free some space or choose another folder."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold a folder that a run writes to, until the block ends or the process dies.

    Raises UserError at once when another process holds it: two runs would write over each other's files.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(blocking=False)
    except Timeout:
        raise UserError(
            f"Another run is writing to {folder}.", "Wait for it, stop it, or choose another folder with --out."
        ) from None
    except OSError as error:
        raise UserError(
            f"{folder} can not be written to: {error.strerror or error}.", "Choose another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, indented."""
    with whole_file(path) as temporary:
        temporary.write_text(
            json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )


def read_json(path: Path, what: str, remedy: str) -> Any:
    """Parse a JSON file; UserError names `what` it should have been when it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no {what} at {path}.", remedy) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"The {what} at {path} can not be read: {error}.", remedy) from None


def read_object(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """The same for files that must hold a JSON object."""
    content = read_json(path, what, remedy)
    if not isinstance(content, dict):
        raise UserError(f"The {what} at {path} is no JSON object.", remedy)
    return content


def digest_of(content: Any) -> str:
    """SHA-256 of JSON-able content in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_room(folder: Path, need: int, step: Callable[[str], None]) -> None:
    """Say how many bytes will be written at most, and refuse when the disk holds fewer."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    step(f"Will write at most {need / 1e9:.2f} GB to {folder} ({free / 1e9:.1f} GB free).")
    if need > free:
        raise UserError(
            f"{folder} has {free / 1e9:.2f} GB free and this may need {need / 1e9:.2f} GB.",
            "Choose another folder, fewer prompts (--limit) or shorter answers (--max-new-tokens), "
            "or train with --on-the-fly.",
        )
