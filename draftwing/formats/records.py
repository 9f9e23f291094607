"""Records: one measurement or run on disk, with its birth certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from draftwing.core.provenance import Provenance
from draftwing.formats.files import write_json


class Record(BaseModel):
    """What every record has. `settings` are all that the run was told, `samples` every raw sample."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[2] = 2
    kind: Literal["train", "bench", "profile", "sweep"]
    provenance: Provenance
    settings: dict[str, Any]
    digests: dict[str, str]
    figures: dict[str, Any]
    samples: list[dict[str, Any]]


def record_path(record: Record) -> Path:
    """Where a record goes that was given no place."""
    return Path("runs") / f"{record.kind}-{record.provenance.date.replace(':', '').replace('+0000', 'Z')}.json"


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically."""
    write_json(path, record.model_dump(mode="json"))
