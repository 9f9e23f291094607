"""The contract: what a drafter is fed. Written at capture, carried through training, checked at every load."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from draftwing.core.errors import UserError
from draftwing.formats.files import read_json, write_json

CONTRACT_FILE = "contract.json"
Kind = TypeVar("Kind", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetIdentity(_Strict):
    """Which target: sizes, and digests of its config, a few weights, tokenizer and chat template."""

    name: str
    layers: int
    hidden_size: int
    vocab_size: int
    config_digest: str
    weights_fingerprint: str
    tokenizer_digest: str
    template_digest: str


class Taps(_Strict):
    """Which states are recorded, low to high, as boundaries (B_0 embedding .. B_n before the final norm)."""

    convention: Literal["boundary"] = "boundary"
    boundaries: tuple[int, ...]


class Contract(_Strict):
    """The part that capture knows."""

    version: Literal[1] = 1
    target: TargetIdentity
    taps: Taps
    last_state: Literal["before_final_norm"] = "before_final_norm"
    capture_dtype: str


class DrafterContract(_Strict):
    """The capture contract and what training added; the drafter's own sizes and rope are in its config.json."""

    version: Literal[1] = 1
    capture: Contract
    vocab_map_digest: str
    trained_context: int
    train_depth: int
    trained_tokens: int
    position_acceptances: tuple[float | None, ...]
    accept_length: float | None


def write_contract(folder: Path, contract: Contract | DrafterContract) -> None:
    """Put contract.json into a folder."""
    write_json(folder / CONTRACT_FILE, contract.model_dump(mode="json"))


def read_drafter_contract(folder: Path) -> DrafterContract:
    """Read a drafter's contract; UserError when it is absent, broken or of another version."""
    raw = read_json(folder / CONTRACT_FILE, "drafter contract", "Use a drafter folder written by `draftwing train`.")
    return parse(DrafterContract, raw, folder / CONTRACT_FILE)


def parse(kind: type[Kind], raw: object, place: Path) -> Kind:
    """Validate parsed JSON; the UserError names the first field that is wrong."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise UserError(
            f"{place}: {where}: {first['msg']}.", "It was edited or written by another version: make it anew."
        ) from None


def require_same_target(ours: TargetIdentity, stated: TargetIdentity, what: str) -> None:
    """UserError naming both values when `what` belongs to another target. The name alone may differ."""
    for field in TargetIdentity.model_fields:
        found, wanted = getattr(stated, field), getattr(ours, field)
        if field != "name" and found != wanted:
            raise UserError(
                f"{what} is for {stated.name}: its {field} is {_short(found)}, the target's is {_short(wanted)}.",
                "Load it with the target that it was made for.",
            )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 20 else text[:16] + "..."
