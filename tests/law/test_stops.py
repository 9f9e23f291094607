"""Stops cut exactly where plain decoding would: end of text, stop strings, length, context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftwing.core.errors import UserError
from draftwing.engine.engine import Engine
from draftwing.engine.request import Counters, Request
from draftwing.engine.stops import Stops
from tests.law.models import Oracle, engine_with, random_drafter, tiny_target

PROMPT = tuple(range(60, 80))


def _speculating(
    folder: Path, request: Request, num_steps: int, context: int = 400, wrong: float = 0.2
) -> tuple[Engine, Engine]:
    """(plain, speculative) engines whose drafter knows the plain text."""
    target, tokenizer = tiny_target(folder)
    drafter = random_drafter(target.config)
    long = engine_with(target, tokenizer, drafter, num_steps).generate(Request(request.prompt, 120), speculate=False)
    oracle = Oracle([[*request.prompt, *long.tokens]], wrong)
    return engine_with(target, tokenizer, drafter, num_steps, None, context), engine_with(
        target, tokenizer, drafter, num_steps, oracle, context
    )


@pytest.mark.parametrize("num_steps", [1, 2, 5, 8])
@pytest.mark.parametrize("length", range(1, 12))
def test_length_is_never_overshot(tiny_folder: Path, length: int, num_steps: int) -> None:
    request = Request(PROMPT, length)
    plain, speculative = _speculating(tiny_folder, request, num_steps)
    a, b = plain.generate(request, speculate=False), speculative.generate(request)
    assert (b.tokens, b.text, b.finish) == (a.tokens, a.text, a.finish)
    assert len(b.tokens) == length


@pytest.mark.parametrize("num_steps", [1, 3, 8])
@pytest.mark.parametrize("place", [1, 2, 3, 5, 9, 14])
def test_stop_strings_cut_at_the_same_character(tiny_folder: Path, place: int, num_steps: int) -> None:
    target, tokenizer = tiny_target(tiny_folder)
    text = (
        engine_with(target, tokenizer, random_drafter(target.config), 1)
        .generate(Request(PROMPT, 60), speculate=False)
        .text
    )
    stop = text[place : place + 3]
    request = Request(PROMPT, 60, stop_strings=(stop, "never in it"))
    plain, speculative = _speculating(tiny_folder, request, num_steps)
    a, b = plain.generate(request, speculate=False), speculative.generate(request)
    assert (b.tokens, b.text, b.finish) == (a.tokens, a.text, a.finish)
    assert b.finish == "stop"
    assert stop not in b.text
    assert text.startswith(b.text)


@pytest.mark.parametrize("num_steps", [1, 3, 8])
def test_the_context_ends_both_alike(tiny_folder: Path, num_steps: int) -> None:
    request = Request(PROMPT, 100)
    plain, speculative = _speculating(tiny_folder, request, num_steps, context=51)
    a, b = plain.generate(request, speculate=False), speculative.generate(request)
    assert (b.tokens, b.finish) == (a.tokens, a.finish)
    assert b.finish == "length"
    assert len(b.tokens) == 51 - len(PROMPT)


def test_past_the_drafters_context_it_goes_on_plainly_and_says_so(tiny_folder: Path) -> None:
    request = Request(PROMPT, 60)
    plain, speculative = _speculating(tiny_folder, request, 3)
    speculative._draft_limit = 45
    a, b = plain.generate(request, speculate=False), speculative.generate(request)
    assert b.tokens == a.tokens
    assert b.counters.plain_steps > 20
    assert b.counters.cycles > 0
    assert len(b.notes) == 1
    assert "45 tokens" in b.notes[0]


def test_no_chain_reaches_past_the_drafters_context(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of 3 drafts behind n tokens needs n + 3 inside the trained context, and the last one fits close."""
    _, speculative = _speculating(tiny_folder, Request(PROMPT, 60), 3)
    speculative._draft_limit = 45
    oracle: Any = speculative._proposer
    real, ends = oracle.propose, []

    def watched(features_MF: Any, next_tokens_M: Any, num_steps: int) -> list[int]:
        drafts: list[int] = real(features_MF, next_tokens_M, num_steps)
        # All tokens but the first have been fed as next tokens.
        ends.append(len(oracle._fed) + 1 + num_steps)
        return drafts

    monkeypatch.setattr(oracle, "propose", watched)
    speculative.generate(Request(PROMPT, 60))
    assert 45 - 4 < max(ends) <= 45


@pytest.mark.parametrize("committed", [1, 2, 3])
def test_tokens_after_a_stop_are_in_no_count(committed: int) -> None:
    """T16 of the field report: drafts d1 d2 EOS d4 d5 all match, committed 3."""
    counters = Counters(5)
    counters.add_cycle(proposed=5, matched=5, committed=committed)
    assert counters.accept_length == committed
    assert sum(counters.accepted) == committed
    assert counters.reached == [1] * committed + [0] * (5 - committed)


def test_rates_have_one_meaning() -> None:
    """T15: ten cycles of six tokens with nothing accepted have rate 0 and accept length 1; all accepted, rate 1."""
    none, every = Counters(5), Counters(5)
    for _ in range(10):
        none.add_cycle(5, 0, 1)
        every.add_cycle(5, 5, 6)
    assert (none.accept_rate, none.accept_length) == (0.0, 1.0)
    assert (every.accept_rate, every.accept_length) == (1.0, 6.0)
    assert none.position_acceptances == [0.0, None, None, None, None]


def test_end_of_text_inside_accepted_drafts_ends_the_answer() -> None:
    stops = Stops(lambda tokens: "".join(map(chr, tokens)), (0,), (), 10)
    assert [stops.push(token) for token in (72, 105, 0)] == ["H", "i", ""]
    assert (stops.finish, stops.text) == ("stop", "Hi")
    with pytest.raises(ValueError, match="ended"):
        stops.push(72)


def test_characters_of_several_tokens_come_out_whole() -> None:
    raw = "aé漢b".encode()
    stops = Stops(lambda tokens: bytes(tokens).decode(errors="replace"), (), (), 100)
    pieces = [stops.push(byte) for byte in raw]
    assert stops.text == "aé漢b"
    assert [piece for piece in pieces if piece] == ["a", "é", "漢", "b"]


def test_a_stop_string_across_tokens_and_its_overlap() -> None:
    stops = Stops(lambda tokens: "".join(map(chr, tokens)), (), ("END", "ND."), 100)
    out = "".join(stops.push(ord(letter)) for letter in "the END"[: len("the END")])
    assert stops.finish == "stop"
    assert stops.text == "the "
    assert out.startswith("the ")


@pytest.mark.parametrize("num_steps", [0, -1, 17])
def test_impossible_num_steps_are_refused(tiny_folder: Path, num_steps: int) -> None:
    target, tokenizer = tiny_target(tiny_folder)
    with pytest.raises(UserError, match="num_steps"):
        engine_with(target, tokenizer, random_drafter(target.config), num_steps)


@pytest.mark.parametrize(("prompt", "length", "stops"), [((), 5, ()), ((1,), 0, ()), ((1,), 5, ("",))])
def test_impossible_requests_are_refused(prompt: tuple[int, ...], length: int, stops: tuple[str, ...]) -> None:
    with pytest.raises(UserError):
        Request(prompt, length, stop_strings=stops)


def test_a_prompt_longer_than_the_context_is_refused(tiny_folder: Path) -> None:
    target, tokenizer = tiny_target(tiny_folder)
    with pytest.raises(UserError, match="context holds 30"):
        engine_with(target, tokenizer, random_drafter(target.config), 2, context=30).generate(
            Request(tuple(range(30)), 5)
        )
