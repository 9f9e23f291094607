"""With and without speculation: same process, same prompts, sides alternating.

Every prompt is answered by both sides, the side that goes first changing from prompt to prompt. Rates count the
tokens after the first one over the time after it (prefill apart). Ratios are per prompt, their medians have a
bootstrap interval over prompts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from draftwing.core.console import Meter
from draftwing.core.statistics import Interval, median, ratio_of_sums
from draftwing.engine.engine import Engine
from draftwing.engine.request import Answer, Counters, Request
from draftwing.measure.divergence import Divergence, first_divergence

# A token behind a run of so many that occurred before stands in a loop, or in a copy.
LOOPED = 8


@dataclass(frozen=True)
class Pair:
    """One prompt answered both ways."""

    id: str
    prompt_tokens: int
    plain: Answer
    speculative: Answer
    divergence: Divergence | None


def run_pairs(engine: Engine, requests: dict[str, Request], meter: Meter) -> list[Pair]:
    """Answer every request both ways, alternating.

    Before that the first prompt is answered backwards, as warm-up: nobody may have seen a prompt that counts, since
    lookup can remember earlier texts.
    """
    first = next(iter(requests.values()))
    warm_up = replace(first, prompt=first.prompt[::-1])
    for speculate in (False, True):
        engine.generate(warm_up, speculate=speculate)
    pairs = []
    for number, (id_, request) in enumerate(requests.items()):
        answers = {}
        for speculate in (False, True) if number % 2 == 0 else (True, False):
            answers[speculate] = engine.generate(request, speculate=speculate)
        plain, speculative = answers[False], answers[True]
        divergence = None
        if request.sampling.greedy:
            divergence = first_divergence(engine.backend, request.prompt, plain.tokens, speculative.tokens)
        pairs.append(Pair(id_, len(request.prompt), plain, speculative, divergence))
        meter.advance(1, f"{len(speculative.tokens)} tokens")
    return pairs


def figures(pairs: list[Pair]) -> dict[str, Any]:
    """Summarise pairs. Answers of a single token have no decoding time and are left out of rates."""
    timed = [pair for pair in pairs if pair.plain.decode_rate and pair.speculative.decode_rate]
    total = Counters()
    for pair in pairs:
        total.add(pair.speculative.counters)
    cycling = [pair.speculative for pair in pairs if pair.speculative.counters.cycles]
    parted = [pair.divergence for pair in pairs if pair.divergence]
    out: dict[str, Any] = {
        "prompts": len(pairs),
        "plain_tok_s": _rate([pair.plain for pair in timed]),
        "speculative_tok_s": _rate([pair.speculative for pair in timed]),
        "speed_up": _interval([_speed_up(pair) for pair in timed]),
        "speed_up_with_prefill": _interval([_speed_up_whole(pair) for pair in timed]),
        "accept_length": asdict(
            ratio_of_sums(
                [answer.counters.committed for answer in cycling], [answer.counters.cycles for answer in cycling]
            )
        )
        if cycling
        else None,
        "accept_rate": total.accept_rate,
        "position_acceptances": total.position_acceptances,
        "tree_size": total.tree_size,
        "accepted_by": _shares(total.by, total.committed),
        "asked": _shares(total.asked, total.cycles),
        "counters": asdict(total),
        "looped": _looped(pairs),
        "identical": sum(pair.plain.tokens == pair.speculative.tokens for pair in pairs),
        "differences": [asdict(divergence) for divergence in parted],
        "cycle_ms": _cycle_parts(cycling),
        "notes": sorted({note for pair in pairs for note in pair.speculative.notes}),
    }
    return out


def _speed_up(pair: Pair) -> float:
    assert pair.plain.decode_rate and pair.speculative.decode_rate
    return pair.speculative.decode_rate / pair.plain.decode_rate


def _speed_up_whole(pair: Pair) -> float:
    def seconds_a_token(answer: Answer) -> float:
        return (answer.prefill_s + answer.decode_s) / len(answer.tokens)

    return seconds_a_token(pair.plain) / seconds_a_token(pair.speculative)


def _interval(values: list[float]) -> dict[str, float] | None:
    return asdict(median(values)) if values else None


def _rate(answers: list[Answer]) -> dict[str, float] | None:
    if not answers:
        return None
    interval: Interval = ratio_of_sums(
        [len(answer.tokens) - 1 for answer in answers], [answer.decode_s for answer in answers]
    )
    return asdict(interval)


def _shares(counts: dict[str, int], whole: int) -> dict[str, float]:
    return {name: count / whole for name, count in sorted(counts.items())} if whole else {}


def _looped(pairs: list[Pair]) -> float | None:
    """Share of the plain answers' tokens that stand behind LOOPED tokens which occurred before in the same answer."""
    seen_before = places = 0
    for pair in pairs:
        tokens, seen = pair.plain.tokens, set()
        for at in range(LOOPED, len(tokens)):
            run = tuple(tokens[at - LOOPED : at])
            seen_before, places = seen_before + (run in seen), places + 1
            seen.add(run)
    return seen_before / places if places else None


def _cycle_parts(answers: list[Answer]) -> dict[str, float] | None:
    """Mean milliseconds of a cycle and its phases.

    `overhead` is all but the target's forward, the drafter, and the choice of tokens from logits, which plain decoding
    makes as well: lookup, trees, calibration, the cache, stops, text.
    """
    cycles = sum(answer.counters.cycles for answer in answers)
    if not cycles:
        return None
    whole = sum(answer.decode_s for answer in answers)
    names = sorted({name for answer in answers for name in answer.phases})
    phases = {name: sum(answer.phases.get(name, 0.0) for answer in answers) for name in names}
    overhead = whole - sum(phases.get(name, 0.0) for name in ("target", "drafter", "choose"))
    milliseconds = {name: 1e3 * seconds / cycles for name, seconds in {**phases, "overhead": overhead}.items()}
    return {"cycle": 1e3 * whole / cycles, **milliseconds, "overhead_share": overhead / whole}


def raw_samples(pairs: list[Pair]) -> list[dict[str, Any]]:
    """Every raw sample, for the record: tokens, times and counts of both sides of each prompt."""

    def side(answer: Answer) -> dict[str, Any]:
        kept = asdict(answer)
        for name in ("text", "gaps", "notes"):
            kept.pop(name)
        return kept | {"tokens": len(answer.tokens)}

    return [
        {
            "id": pair.id,
            "prompt_tokens": pair.prompt_tokens,
            "plain": side(pair.plain),
            "speculative": side(pair.speculative),
            "divergence": asdict(pair.divergence) if pair.divergence else None,
        }
        for pair in pairs
    ]
