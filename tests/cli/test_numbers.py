"""Every numeric option of every verb, at the border and beyond: an answer or a sentence, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from typer.testing import CliRunner

from draftwing.cli.main import app
from tests.tiny import save_tiny

VALUES = ["nan", "inf", "-inf", "-1", "0", "1e400", "9" * 30, "-" + "9" * 30, "1.5"]


def _numeric() -> Iterator[tuple[str, str]]:
    """(verb, option) for each parameter whose type is a number, read from the verbs' own signatures."""
    for command in app.registered_commands:
        verb = command.callback
        assert verb is not None
        for name, annotated in get_type_hints(verb, include_extras=True).items():
            kinds = (
                {int, float} & {*get_args(annotated), *get_args(get_args(annotated)[0])} if get_args(annotated) else {}
            )
            if kinds:
                declared = get_args(annotated)[1].param_decls or ()
                yield verb.__name__, declared[0] if declared else "--" + name.replace("_", "-")


NUMERIC = list(_numeric())


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """A small run of each verb; what is to be tried comes after it, and so counts."""
    root = tmp_path_factory.mktemp("numbers")
    prompts = root / "prompts.txt"
    prompts.write_text("one\ntwo\nthree\n")
    target = ["--target", str(save_tiny(root / "target")), "--dtype", "float32", "--threads", "1"]
    data = ["--prompts", str(prompts), "--split", "all", "--limit", "2", "--max-new-tokens", "6", *target]
    taps = ["--taps", "2,4,5"]
    features, drafter = str(root / "features"), str(root / "drafter")
    train = ["--features", features, *target, "--epochs", "1", "--depth", "2", "--draft-vocab-size", "64"]
    made = {
        "capture": [*data, *taps, "--batch", "2", "--out", features],
        "train": [*train, "--out", drafter],
        "generate": ["hi", "--max-new-tokens", "6", *target, "--drafter", drafter],
        "bench": [*data, "--drafter", drafter, "--record", str(root / "record.json")],
        "profile": [*target, "--largest", "2", "--at", "3", "--rounds", "1", "--record", str(root / "profile.json")],
        "pull": ["default"],
    }
    for verb in ("capture", "train"):
        assert CliRunner().invoke(app, [verb, *made[verb]]).exit_code == 0
    return made


def test_the_walk_sees_the_options() -> None:
    seen = {option for _, option in NUMERIC}
    assert {
        "--muon-lr",
        "--threads",
        "--seed",
        "--max-new-tokens",
        "--temperature",
        "--lookup-earlier",
        "--depth",
    } <= seen


@pytest.mark.parametrize(("verb", "option"), NUMERIC)
def test_a_number_at_the_border_gets_an_answer_or_a_sentence(
    words: dict[str, list[str]], tmp_path: Path, verb: str, option: str
) -> None:
    threads = torch.get_num_threads()
    for value in VALUES:
        out = ["--out", str(tmp_path / value)] if verb in {"capture", "train"} else []
        done = CliRunner().invoke(app, [verb, *words[verb], *out, option, value])
        assert done.exit_code in {0, 2}, (value, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), (value, done.exception)
        if value in {"nan", "inf", "-inf", "1e400"}:
            assert done.exit_code == 2, value
    torch.set_num_threads(threads)


@pytest.mark.parametrize("weight", ["0.001", "10"])
def test_the_last_of_many_steps_weighs_something_float32_can_hold(words: dict[str, list[str]], weight: str) -> None:
    """0.001 ** 63 is 0 in float32 and 10 ** 63 infinite: the loss then was no number, and the rates got the blame."""
    out = str(Path(words["train"][-1]).parent / f"deep-{weight}")
    done = CliRunner().invoke(app, ["train", *words["train"], "--depth", "64", "--step-weight", weight, "--out", out])
    assert done.exit_code == 0, done.output
