"""The contract: it comes back as written, names the field that is wrong, and tells targets apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftwing.core.errors import UserError
from draftwing.formats.contract import (
    Contract,
    DrafterContract,
    TargetIdentity,
    parse,
    read_drafter_contract,
    require_same_target,
    write_contract,
)
from draftwing.formats.files import read_json
from tests.formats.small import contract, drafter_contract, identity


def test_a_contract_comes_back_and_says_its_conventions_in_words(tmp_path: Path) -> None:
    write_contract(tmp_path, drafter_contract())
    assert read_drafter_contract(tmp_path) == drafter_contract()
    raw = read_json(tmp_path / "contract.json", "contract", "")
    assert raw["capture"]["taps"] == {"convention": "boundary", "boundaries": [2, 4, 5]}
    assert raw["capture"]["last_state"] == "before_final_norm"
    assert raw["version"] == raw["capture"]["version"] == 1


def test_a_missing_contract_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no drafter contract at .*contract\.json.*draftwing train"):
        read_drafter_contract(tmp_path)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda raw: raw.pop("trained_context"), "trained_context: Field required"),
        (lambda raw: raw.update(version=2), "version: Input should be 1"),
        (lambda raw: raw.update(colour="red"), "colour: Extra inputs"),
        (
            lambda raw: raw["capture"]["taps"].update(convention="output"),
            "capture.taps.convention: Input should be 'bo",
        ),
        (
            lambda raw: raw["capture"]["target"].update(layers="many"),
            "capture.target.layers: Input should be a valid int",
        ),
        (
            lambda raw: raw["capture"].update(last_state="after_final_norm"),
            "capture.last_state: Input should be 'befor",
        ),
        (lambda raw: raw.update(position_acceptances=[0.5, "high"]), "position_acceptances.1: "),
    ],
    ids=["absent", "version", "unknown", "convention", "type", "norm", "item"],
)
def test_the_first_wrong_field_is_named(change: Any, field: str) -> None:
    raw = drafter_contract().model_dump(mode="json")
    change(raw)
    with pytest.raises(UserError) as error:
        parse(DrafterContract, raw, Path("folder/contract.json"))
    assert str(error.value).startswith(f"folder/contract.json: {field}")
    assert "make it anew" in error.value.remedy


@pytest.mark.parametrize("raw", [[], "text", None, 3])
def test_what_is_no_object_is_refused(raw: object) -> None:
    with pytest.raises(UserError, match=r"a/contract\.json: file: "):
        parse(Contract, raw, Path("a/contract.json"))


def test_contracts_can_not_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        contract().capture_dtype = "float32"  # type: ignore[misc]


@pytest.mark.parametrize("field", [field for field in TargetIdentity.model_fields if field != "name"])
def test_another_target_is_refused_with_both_values(field: str) -> None:
    other = 99 if isinstance(getattr(identity(), field), int) else "f" * 64
    stated = identity("theirs").model_copy(update={field: other})
    with pytest.raises(UserError) as error:
        require_same_target(identity(), stated, "The drafter in x")
    short = (str(other)[:16], str(getattr(identity(), field))[:16])
    assert str(error.value).startswith(f"The drafter in x is for theirs: its {field} is {short[0]}")
    assert f"the target's is {short[1]}" in str(error.value)
    assert len(str(error.value)) < 250, "digests are shortened"


def test_the_name_alone_may_differ() -> None:
    require_same_target(identity("here"), identity("there"), "The drafter")
