"""Stops cut exactly where plain decoding would: end of text, stop strings, length, context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftwing.core.errors import UserError
from draftwing.engine.engine import Engine
from draftwing.engine.proposers.base import Ask
from draftwing.engine.request import Counters, Request
from draftwing.engine.shape import AUTO, Shape
from draftwing.engine.stops import Stops
from draftwing.engine.tree import Candidates
from tests.law.models import Oracle, engine_with, random_drafter, tiny_target

PROMPT = tuple(range(60, 80))


def _speculating(
    folder: Path, request: Request, shape: int | Shape, context: int = 400, wrong: float = 0.2
) -> tuple[Engine, Engine]:
    """(plain, speculative) engines whose proposer knows the plain text."""
    target, tokenizer = tiny_target(folder)
    long = engine_with(target, tokenizer, None, 1).generate(Request(request.prompt, 120), speculate=False)
    oracle = Oracle([[*request.prompt, *long.tokens]], wrong)
    return engine_with(target, tokenizer, None, 1, context=context), engine_with(
        target, tokenizer, None, shape, oracle, context=context
    )


SHAPES = [1, 2, 3, 5, 8, Shape(6, 2, 3), Shape(40, 4, 8), AUTO]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("length", range(1, 12))
def test_length_is_never_overshot(tiny_folder: Path, length: int, shape: int | Shape) -> None:
    request = Request(PROMPT, length)
    plain, speculative = _speculating(tiny_folder, request, shape)
    a, b = plain.generate(request, speculate=False), speculative.generate(request)
    assert (b.tokens, b.text, b.finish) == (a.tokens, a.text, a.finish)
    assert len(b.tokens) == length


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("place", [1, 2, 3, 5, 9, 14])
def test_stop_strings_cut_at_the_same_character(tiny_folder: Path, place: int, shape: int | Shape) -> None:
    target, tokenizer = tiny_target(tiny_folder)
    text = engine_with(target, tokenizer, None, 1).generate(Request(PROMPT, 60), speculate=False).text
    stop = text[place : place + 3]
    request = Request(PROMPT, 60, stop_strings=(stop, "never in it"))
    plain, speculative = _speculating(tiny_folder, request, shape)
    a, b = plain.generate(request, speculate=False), speculative.generate(request)
    assert (b.tokens, b.text, b.finish) == (a.tokens, a.text, a.finish)
    assert b.finish == "stop"
    assert stop not in b.text
    assert text.startswith(b.text)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_context_ends_both_alike(tiny_folder: Path, shape: int | Shape) -> None:
    request = Request(PROMPT, 100)
    plain, speculative = _speculating(tiny_folder, request, shape, context=51)
    a, b = plain.generate(request, speculate=False), speculative.generate(request)
    assert (b.tokens, b.finish) == (a.tokens, a.finish)
    assert b.finish == "length"
    assert len(b.tokens) == 51 - len(PROMPT)


def test_past_the_drafters_context_it_goes_on_without_drafts_and_says_so(tiny_folder: Path) -> None:
    target, tokenizer = tiny_target(tiny_folder)
    engine = engine_with(target, tokenizer, random_drafter(target.config), 3)
    drafter: Any = engine.planner.proposers[0]
    drafter.limit = 45
    plain = engine.generate(Request(PROMPT, 60), speculate=False)
    answer = engine.generate(Request(PROMPT, 60))
    assert answer.tokens == plain.tokens
    assert len(answer.notes) == 1
    assert "45 tokens" in answer.notes[0]
    assert 60 < answer.counters.proposed <= 3 * (45 - len(PROMPT))
    assert not drafter._features, "what is never fed is not kept"
    assert engine.generate(Request(PROMPT, 5)).notes == [], "the next request begins anew"


def test_no_chain_reaches_past_the_drafters_context(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of d drafts behind n tokens needs n + d inside the trained context, and the last one fits close."""
    target, tokenizer = tiny_target(tiny_folder)
    engine = engine_with(target, tokenizer, random_drafter(target.config), 3)
    drafter: Any = engine.planner.proposers[0]
    drafter.limit, real, ends = 45, drafter.propose, []

    def watched(ask: Ask) -> Candidates:
        waiting = drafter.length + len(drafter._tokens)
        out: Candidates = real(ask)
        if out.tokens:
            # All tokens but the first are fed as next tokens.
            ends.append(waiting + 1 + len(out.tokens))
        return out

    monkeypatch.setattr(drafter, "propose", watched)
    engine.generate(Request(PROMPT, 60))
    assert max(ends) == 45


@pytest.mark.parametrize("committed", [1, 2, 3])
def test_tokens_after_a_stop_are_in_no_count(committed: int) -> None:
    """T16 of the field report: drafts d1 d2 EOS d4 d5 all match, committed 3."""
    counters = Counters()
    counters.add_cycle(nodes=6, matched=5, judged=5, committed=committed)
    assert counters.accept_length == committed
    assert sum(counters.accepted) == committed
    assert counters.reached == [1] * committed + [0] * (5 - committed)


def test_rates_have_one_meaning() -> None:
    """T15: ten cycles of six tokens with nothing accepted have rate 0 and accept length 1; all accepted, rate 1."""
    none, every = Counters(), Counters()
    for _ in range(10):
        none.add_cycle(6, 0, 1, 1)
        every.add_cycle(6, 5, 5, 6)
    assert (none.accept_rate, none.accept_length) == (0.0, 1.0)
    assert (every.accept_rate, every.accept_length) == (1.0, 6.0)
    assert none.position_acceptances == [0.0]
    none.add(every)
    assert none.position_acceptances == [0.5, 1, 1, 1, 1]
    assert (none.cycles, none.proposed, none.tree_size) == (20, 100, 6)


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


@pytest.mark.parametrize(("prompt", "length", "stops"), [((), 5, ()), ((1,), 0, ()), ((1,), 5, ("",))])
def test_impossible_requests_are_refused(prompt: tuple[int, ...], length: int, stops: tuple[str, ...]) -> None:
    with pytest.raises(UserError):
        Request(prompt, length, stop_strings=stops)


def test_a_prompt_longer_than_the_context_is_refused(tiny_folder: Path) -> None:
    target, tokenizer = tiny_target(tiny_folder)
    with pytest.raises(UserError, match="context holds 30"):
        engine_with(target, tokenizer, None, 2, context=30).generate(Request(tuple(range(30)), 5))
