"""What reaches a person when a verb fails: a sentence and a code; and a traceback when the fault is ours."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer

from draftwing.cli.bench import _table
from draftwing.cli.boundary import verb
from draftwing.cli.generate import _question
from draftwing.core.errors import UserError


def _asks_torch_for_too_much() -> None:
    torch.empty(2**50)


def _asks_python_for_too_much() -> None:
    bytearray(2**62)


def _runs_out_on_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")


@pytest.mark.parametrize("fault", [_asks_torch_for_too_much, _asks_python_for_too_much, _runs_out_on_a_gpu])
def test_memory_that_does_not_suffice_is_a_sentence(fault: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        verb(fault)()
    assert left.value.exit_code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("draftwing: The memory does not suffice (")
    assert "Lower --batch" in said and "\n" not in said


def test_other_errors_of_torch_are_our_bugs_and_keep_their_traceback() -> None:
    def mismatched() -> None:
        torch.ones(2) @ torch.ones(3)

    with pytest.raises(RuntimeError, match="size"):
        verb(mismatched)()


def test_what_is_no_utf_8_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    for piped, words in (
        (b"caf\xe9", "not text in UTF-8 .*0xe9 in position 3"),
        (b"\xed\xa0\x80", "not text in UTF-8"),
    ):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(piped)))
        with pytest.raises(UserError, match=words):
            _question("-")
    # As Python hands over an argument with the byte E9.
    with pytest.raises(UserError, match=r"character 3 \(U\+DCE9\)"):
        _question("caf\udce9")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xef\xbb\xbfcaf\xc3\xa9\n")))
    assert _question("-") == "café\n"


@pytest.mark.parametrize("columns", [30, 40, 60, 200])
def test_the_table_of_a_bench_fits_the_terminal_and_loses_no_letter(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    def interval(value: float) -> dict[str, float]:
        return {"estimate": value, "low": 0.9 * value, "high": 1.1 * value}

    summary: dict[str, Any] = {
        **dict.fromkeys(("plain_tok_s", "speculative_tok_s"), interval(123.4)),
        **dict.fromkeys(("speed_up", "speed_up_with_prefill", "accept_length"), interval(2.0)),
        "prompts": 20,
        "identical": 20,
        "rounding_between_shapes": 0.03,
        "differences": [],
        "notes": [],
        "position_acceptances": [0.5] * 5,
        "tree_size": 12.5,
        "accepted_by": {"drafter": 0.4, "drafter+lookup": 0.1},
        "asked": {"drafter": 0.9, "lookup": 0.4},
        "looped": 0.3,
        "cycle_ms": {"cycle": 34.0, "drafter": 3.0, "target": 30.0, "overhead": 1.0, "overhead_share": 0.03},
        "calibration": [{"proposer": "drafter", "trials": 100, "estimated": 0.5, "observed": 0.6, "bucket": "b"}],
    }
    how = {"tree": "auto", "proposers": ["drafter", "lookup"]}
    _table(summary, {"prompts": "a/long/path/prompts.jsonl", "split": "heldout", "dtype": "bfloat16", **how})
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    cells = "".join(line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│"))
    for name in ("speculativedecoding", "positionacceptances", "betweenbatchshapes"):
        assert name in cells.replace(" ", "")
