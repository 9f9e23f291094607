"""Our plain decoding beside transformers' `generate`: same weights, dtype, threads and prompts, greedy, alternating.

    python recipes/plain_against_transformers.py --limit 10 --out docs/results/plain-against-transformers.json

Prints the median ratio with its interval over prompts and whether the tokens were the same; writes every sample.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoModelForCausalLM

from draftwing.capture.prompts import read_prompts
from draftwing.cli import parts
from draftwing.core.provenance import here
from draftwing.core.statistics import median
from draftwing.engine.engine import Engine
from draftwing.engine.request import Request


def main(
    limit: Annotated[int, typer.Option(help="Prompts.")] = 10,
    new_tokens: Annotated[int, typer.Option(help="Tokens to an answer.")] = 96,
    out: Annotated[Path, typer.Option(help="Where the record goes.")] = Path("runs/plain-against-transformers.json"),
) -> None:
    """Measure and record."""
    threads = parts.set_threads(0)
    loaded = parts.open_target("default", "auto", "cpu", None)
    dtype = loaded.target.weights.head.dtype
    theirs = AutoModelForCausalLM.from_pretrained(loaded.target.folder, dtype=dtype).eval()
    engine = Engine(loaded.target.decoder(1, 1024), loaded.tokenizer)
    samples = []
    for number, prompt in enumerate(read_prompts("sharegpt", "heldout", limit + 1)):
        tokens = loaded.tokenizer.prompt(list(prompt.messages))[:400]
        sides = (_ours, _theirs) if number % 2 else (_theirs, _ours)
        result = {side.__name__[1:]: side(engine, theirs, tokens, new_tokens) for side in sides}
        # The first prompt warms both sides up.
        if number:
            samples.append({"prompt_tokens": len(tokens), **{name: seconds for name, (seconds, _) in result.items()}})
            samples[-1]["same_tokens"] = result["ours"][1] == result["theirs"][1]
            print(json.dumps(samples[-1]), flush=True)
    ratio = median([sample["theirs"] / sample["ours"] for sample in samples])
    print(f"transformers takes {ratio.estimate:.2f} times as long ({ratio.low:.2f} to {ratio.high:.2f})")
    record = {"provenance": here(threads).model_dump(), "dtype": str(dtype), "ratio": vars(ratio), "samples": samples}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")


def _ours(engine: Engine, _: torch.nn.Module, tokens: list[int], new_tokens: int) -> tuple[float, list[int]]:
    """Seconds per token of the whole answer, prefill included, and its tokens."""
    start = time.perf_counter()
    answer = engine.generate(Request(tuple(tokens), new_tokens), speculate=False)
    return (time.perf_counter() - start) / len(answer.tokens), answer.tokens


def _theirs(_: Engine, model: torch.nn.Module, tokens: list[int], new_tokens: int) -> tuple[float, list[int]]:
    start = time.perf_counter()
    ids = torch.tensor([tokens])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False)
    answer = out[0, len(tokens) :].tolist()
    return (time.perf_counter() - start) / len(answer), answer


if __name__ == "__main__":
    typer.run(main)
