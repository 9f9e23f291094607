"""The talk goes to stderr; the state folder follows the environment; a user's error is two sentences."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from draftwing.core import console, settings
from draftwing.core.errors import UserError


def test_notes_go_to_stderr_as_they_are(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No markup is interpreted, and a long line is not broken."""
    monkeypatch.setattr(console, "stderr", Console(stderr=True, highlight=False))
    text = "[bold]x[/bold] " + "word " * 60
    console.note(text.rstrip())
    out, err = capfd.readouterr()
    assert out == ""
    assert err == text.rstrip() + "\n"


def test_progress_off_a_terminal_is_a_line_at_every_twentieth(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "stderr", Console(stderr=True, highlight=False, force_terminal=False))
    with console.progress("capture", 200, "samples") as meter:
        for number in range(200):
            meter.advance(1, f"sample {number}")
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 20
    assert lines[0].startswith("capture: 5 %")
    assert lines[-1].startswith("capture: 100 %")
    assert lines[-1].endswith("0 min left  sample 199")


def test_what_an_earlier_run_did_makes_no_rate(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of the rest in one second, nine tenths left: nine seconds, whatever was done before."""
    monkeypatch.setattr(console, "stderr", Console(stderr=True, highlight=False, force_terminal=False))
    now = iter([0.0, 60.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    with console.progress("train", 2_000, "tokens") as meter:
        meter.resume(1_000)
        meter.advance(100)
    assert capfd.readouterr().err == "train: 55 %, 1.7 tokens/s, 9 min left\n"


def test_a_bar_resumes_where_the_earlier_run_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "stderr", Console(file=screen, force_terminal=True, width=120))
    with console.progress("train", 2_000, "tokens") as meter:
        meter.resume(1_000)
        meter.advance(500, "on")
    assert "75%" in screen.getvalue()


def test_progress_on_a_terminal_is_a_bar_that_ends_full(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.StringIO()
    monkeypatch.setattr(console, "stderr", Console(file=sink, force_terminal=True, width=160))
    with console.progress("capture", 10, "samples") as meter:
        for _ in range(10):
            meter.advance(1, "going on")
    assert "100%" in sink.getvalue()
    assert "going on" in sink.getvalue()
    assert "samples/s" in sink.getvalue()


def test_home_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWING_HOME", str(tmp_path / "mine"))
    assert settings.home() == tmp_path / "mine"
    monkeypatch.delenv("DRAFTWING_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert settings.home() == tmp_path / "cache" / "draftwing"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.home() == tmp_path / ".cache" / "draftwing"


def test_a_user_error_is_a_problem_and_a_remedy() -> None:
    error = UserError("It is broken.", "Mend it.")
    assert str(error) == "It is broken. Mend it."
    assert (error.problem, error.remedy) == ("It is broken.", "Mend it.")
