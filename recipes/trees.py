"""Every kind of tree on the same prompts in one run: is what `auto` picks as good as the best fixed one?

    python recipes/trees.py --prompts sharegpt --limit 20 --out runs/trees-sharegpt.json

Each prompt is answered plainly, by every fixed shape, and by auto, in an order that changes from prompt to prompt.
`--drafter random` takes a drafter of random weights: auto must not be slower than plain decoding with it.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch

from draftwing.capture.prompts import read_prompts
from draftwing.cli import parts
from draftwing.core.console import progress
from draftwing.core.provenance import here
from draftwing.core.statistics import median, ratio_of_sums
from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.engine.cost import kept_cost
from draftwing.engine.engine import Engine
from draftwing.engine.proposers.base import Proposer
from draftwing.engine.proposers.drafter import EagleProposer
from draftwing.engine.proposers.lookup import Lookup
from draftwing.engine.request import Answer, Request
from draftwing.engine.shape import parse_shape
from draftwing.formats.records import Record, write_record
from draftwing.ops.sampling import Sampling

CHAINS = ["chain:1", "chain:2", "chain:3", "chain:5", "chain:8"]
TREES = ["4:2:2", "6:2:3", "6:4:2", "8:2:4", "8:4:3", "12:4:4", "16:4:5", "24:4:5", "32:8:5"]
BOTH, DRAFTER, LOOKUP = "drafter+lookup", "drafter", "lookup"
ARMS = {
    "plain": (None, ""),
    **{f"{shape} {BOTH}": (shape, BOTH) for shape in [*CHAINS, *TREES]},
    **{f"{shape} {DRAFTER}": (shape, DRAFTER) for shape in ["chain:2", "chain:3", "8:4:3"]},
    **{f"{shape} {LOOKUP}": (shape, LOOKUP) for shape in ["chain:3", "chain:8", "8:2:4"]},
    **{f"auto {names}": ("auto", names) for names in (BOTH, DRAFTER, LOOKUP)},
}


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", default="sharegpt")
    parser.add_argument("--split", default="heldout")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--drafter", default="default", help="a folder, 'default', or 'random'")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    threads = parts.set_threads(0)
    loaded = parts.open_target("default", "auto", "cpu", None)
    drafter = _drafter(options.drafter, loaded)
    engines = _engines(loaded, drafter, options.arms)
    requests = {
        prompt.id: Request(
            tuple(loaded.tokenizer.prompt(list(prompt.messages))[:512]),
            options.max_new_tokens,
            Sampling(options.temperature, seed=1),
        )
        for prompt in read_prompts(options.prompts, options.split, options.limit)
    }
    samples = _run(engines, requests)
    figures = _figures(samples)
    record = Record(
        kind="sweep",
        provenance=here(threads),
        settings={name: str(value) for name, value in vars(options).items() if name not in {"arms", "out"}},
        digests={"target": loaded.target.weights.fingerprint},
        figures=figures,
        samples=samples,
    )
    write_record(options.out, record)
    for name, row in sorted(figures.items(), key=lambda pair: -pair[1]["tok_s"]):
        speed_up = row["speed_up"]
        print(
            f"{name:26} {row['tok_s']:7.1f} tok/s  {speed_up['estimate']:.2f} x "
            f"({speed_up['low']:.2f} to {speed_up['high']:.2f})  accept length {row['accept_length'] or 1:.2f}"
        )


def _drafter(name: str, loaded: parts.Loaded) -> LoadedDrafter:
    drafter = parts.open_drafter("default" if name == "random" else name, loaded, None)
    assert drafter
    if name == "random":
        generator = torch.Generator().manual_seed(0)
        for weight in drafter.model.parameters():
            if weight.ndim > 1:
                weight.data = torch.randn(weight.shape, generator=generator).to(weight) / weight.shape[-1] ** 0.5
        drafter.model.freeze()
    return drafter


def _engines(loaded: parts.Loaded, drafter: LoadedDrafter, arms: list[str]) -> dict[str, Engine]:
    """All on one backend: they take turns, and each prefills anew."""
    backend = loaded.target.decoder(1, 1024)
    costs = kept_cost(backend, loaded.target.weights.fingerprint, drafter.taps)
    engines = {}
    for arm in arms:
        shape, names = ARMS[arm]
        proposers: list[Proposer] = []
        if DRAFTER in names:
            proposers.append(EagleProposer(drafter, backend.embed, backend.cache.capacity))
        if LOOKUP in names:
            proposers.append(Lookup())
        engines[arm] = Engine(backend, loaded.tokenizer, proposers, parse_shape(shape or "auto"), costs)
    return engines


def _run(engines: dict[str, Engine], requests: dict[str, Request]) -> list[dict[str, Any]]:
    """Every engine answers every request; the first request is answered once more beforehand, as warm-up."""
    order, shuffle = list(engines), random.Random(0)
    first = next(iter(requests.values()))
    for engine in engines.values():
        engine.generate(first)
    samples = []
    with progress("trees", len(requests) * len(engines), "answers") as meter:
        for id_, request in requests.items():
            shuffle.shuffle(order)
            answers = {}
            for name in order:
                answers[name] = _kept(engines[name].generate(request))
                meter.advance(1)
            samples.append({"id": id_, "prompt_tokens": len(request.prompt), "answers": answers})
    return samples


def _kept(answer: Answer) -> dict[str, Any]:
    counters = answer.counters
    return {
        "tokens": len(answer.tokens),
        "decode_s": answer.decode_s,
        "cycles": counters.cycles,
        "committed": counters.committed,
        "nodes": counters.nodes,
        "by": counters.by,
        "asked": counters.asked,
        "phases": answer.phases,
    }


def _figures(samples: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By arm: tokens a second over all prompts, and the median over prompts of the speed-up over plain decoding."""
    timed = [sample for sample in samples if all(one["tokens"] > 1 for one in sample["answers"].values())]
    figures: dict[str, dict[str, Any]] = {}
    for arm in samples[0]["answers"]:
        mine = [sample["answers"][arm] for sample in timed]
        plain = [sample["answers"]["plain"] for sample in timed]
        rates, plain_rates = ([(one["tokens"] - 1) / one["decode_s"] for one in some] for some in (mine, plain))
        cycles, committed = (sum(one[name] for one in mine) for name in ("cycles", "committed"))
        figures[arm] = {
            "tok_s": ratio_of_sums([one["tokens"] - 1 for one in mine], [one["decode_s"] for one in mine]).estimate,
            "speed_up": vars(median([mine / plain for mine, plain in zip(rates, plain_rates, strict=True)])),
            "accept_length": committed / cycles if cycles else None,
            "tree_size": sum(one["nodes"] for one in mine) / cycles if cycles else None,
        }
    return figures


if __name__ == "__main__":
    main()
