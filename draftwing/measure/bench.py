"""With and without the drafter: same process, same prompts, sides alternating.

Every prompt is answered by both sides, the side that goes first changing from prompt to prompt. Rates count the
tokens after the first one over the time after it (prefill apart). Ratios are per prompt, their medians have a
bootstrap interval over prompts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from draftwing.core.console import Meter
from draftwing.core.statistics import Interval, median, ratio_of_sums
from draftwing.engine.engine import Engine
from draftwing.engine.request import Answer, Counters, Request
from draftwing.measure.divergence import Divergence, first_divergence


@dataclass(frozen=True)
class Pair:
    """One prompt answered both ways."""

    id: str
    prompt_tokens: int
    plain: Answer
    speculative: Answer
    divergence: Divergence | None


def run_pairs(engine: Engine, requests: dict[str, Request], meter: Meter) -> list[Pair]:
    """Answer every request both ways, alternating; the first request is run once more beforehand as warm-up."""
    warm_up = next(iter(requests.values()))
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


def figures(pairs: list[Pair], num_steps: int) -> dict[str, Any]:
    """Summarise pairs. Answers of a single token have no decoding time and are left out of rates."""
    timed = [pair for pair in pairs if pair.plain.decode_rate and pair.speculative.decode_rate]
    total = Counters(num_steps)
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
        "counters": asdict(total),
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


def _cycle_parts(answers: list[Answer]) -> dict[str, float] | None:
    """Mean milliseconds of a cycle and its parts; overhead is what is neither draft nor target. Answers that decoded
    some steps without drafts are left out, since their time mixes both kinds of step."""
    pure = [answer for answer in answers if not answer.counters.plain_steps]
    cycles = sum(answer.counters.cycles for answer in pure)
    if not cycles:
        return None
    # Prefill's target time is not part of it: `target_s` counts steps only.
    whole, draft, target = (
        sum(getattr(answer, name) for answer in pure) for name in ("decode_s", "draft_s", "target_s")
    )
    return {
        "cycle": 1e3 * whole / cycles,
        "draft": 1e3 * draft / cycles,
        "target": 1e3 * target / cycles,
        "overhead": 1e3 * (whole - draft - target) / cycles,
        "overhead_share": (whole - draft - target) / whole,
    }


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
