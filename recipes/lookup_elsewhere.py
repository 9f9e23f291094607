"""Lookup here and elsewhere: each engine's speed-up over its own plain decoding, on the same prompts in one run.

    python recipes/lookup_elsewhere.py --limit 20 --vllm .venv-vllm/bin/python --out runs/lookup-elsewhere.json

Sides: this project (plain, lookup alone, drafter and lookup), transformers (`generate` plain, and with
`prompt_lookup_num_tokens`), and vLLM on a CPU (plain, `ngram`, `suffix`) where `--vllm` names a Python that has it.
Every engine lives in a process of its own and waits while another answers; the order changes from prompt to prompt.
Times are of whole answers, prefill included, since not every engine tells them apart; one more prompt is answered
beforehand, as warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OURS = {"plain": None, "lookup": "lookup", "drafter and lookup": "drafter,lookup"}
VLLM: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 8, "prompt_lookup_min": 2},
    "suffix": {"method": "suffix", "num_speculative_tokens": 16},
}
Answer = Callable[[list[int], int], list[int]]


def ours(which: str) -> Answer:
    """This project's engine."""
    from draftwing.cli import parts
    from draftwing.engine.request import Request

    parts.set_threads(0)
    loaded = parts.open_target("default", "auto", "cpu", None)
    names = OURS[which]
    drafter = parts.open_drafter("default" if names and "drafter" in names else "none", loaded, None)
    engine = parts.make_engine(loaded, drafter, parts.Speculation("auto", names), 1024)
    return lambda prompt, length: engine.generate(Request(tuple(prompt), length), speculate=bool(names)).tokens


def transformers(which: str) -> Answer:
    """`generate`, plain or with prompt lookup."""
    import torch
    from transformers import AutoModelForCausalLM

    from draftwing.cli import parts

    parts.set_threads(0)
    loaded = parts.open_target("default", "auto", "cpu", None)
    model = AutoModelForCausalLM.from_pretrained(loaded.target.folder, dtype=loaded.target.weights.head.dtype).eval()
    extra = {"prompt_lookup_num_tokens": 8, "max_matching_ngram_size": 3} if which == "lookup" else {}

    def answer(prompt: list[int], length: int) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False, **extra
            )
        said: list[int] = out[0, len(prompt) :].tolist()
        return said

    return answer


def vllm(which: str) -> Answer:
    """vLLM's offline engine."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    model = LLM(
        os.environ["TARGET"],
        dtype="bfloat16",
        max_model_len=1024,
        enable_prefix_caching=False,
        speculative_config=VLLM[which],
        disable_log_stats=True,
    )

    def answer(prompt: list[int], length: int) -> list[int]:
        sampling = SamplingParams(temperature=0.0, max_tokens=length)
        return list(model.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)[0].outputs[0].token_ids)

    return answer


ENGINES: dict[str, Callable[[str], Answer]] = {"draftwing": ours, "transformers": transformers, "vllm": vllm}


def serve(engine: str, which: str) -> None:
    """Answer prompts from standard input, one JSON a line, until it ends; answers go to the original stdout."""
    out = os.fdopen(os.dup(1), "w")
    # Whatever a library prints must not stand among the answers.
    os.dup2(2, 1)
    answer = ENGINES[engine](which)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.perf_counter()
        tokens = answer(asked["prompt"], asked["length"])
        print(json.dumps({"seconds": time.perf_counter() - start, "tokens": len(tokens)}), file=out, flush=True)


class Side:
    """One engine in one process."""

    def __init__(self, python: str, engine: str, which: str, log: Path) -> None:
        self.name = f"{engine}: {which}"
        self._log = log.open("w")
        command = [python, __file__, "--serve", engine, which]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self.runs = self._read() == "ready"

    def ask(self, prompt: list[int], length: int) -> dict[str, float]:
        """Seconds and number of tokens of an answer."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"prompt": prompt, "length": length}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, float] = json.loads(self._read())
        return answer

    def close(self) -> None:
        """End the process, and the workers that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--prompts", default="sharegpt")
    parser.add_argument("--split", default="heldout")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--length", type=int, default=160)
    parser.add_argument("--vllm", help="a Python that has vLLM for CPUs")
    parser.add_argument("--out", type=Path, default=Path("runs/lookup-elsewhere.json"))
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    prompts = _prompts(options)
    sides = _sides(options)
    try:
        samples = _measure([side for side in sides if side.runs], prompts, options.length)
    finally:
        for side in sides:
            side.close()
    _record(options, samples)


def _prompts(options: argparse.Namespace) -> list[list[int]]:
    from draftwing.capture.prompts import read_prompts
    from draftwing.cli import parts

    loaded = parts.open_target("default", "auto", "cpu", None)
    os.environ["TARGET"] = str(loaded.target.folder)
    found = read_prompts(options.prompts, options.split, options.limit + 1)
    return [loaded.tokenizer.prompt(list(prompt.messages))[:512] for prompt in found]


def _sides(options: argparse.Namespace) -> list[Side]:
    wanted = [("draftwing", which) for which in OURS] + [("transformers", "plain"), ("transformers", "lookup")]
    if options.vllm:
        wanted += [("vllm", which) for which in VLLM]
    sides = []
    for engine, which in wanted:
        log = options.out.parent / f"{engine}-{which.replace(' ', '-')}.log"
        side = Side(options.vllm if engine == "vllm" else sys.executable, engine, which, log)
        print(f"{side.name}: {'ready' if side.runs else f'does not run, see {log}'}", flush=True)
        sides.append(side)
    return sides


def _measure(sides: list[Side], prompts: list[list[int]], length: int) -> list[dict[str, Any]]:
    from draftwing.core.console import progress

    order, shuffle = list(sides), random.Random(0)
    # Not one of those that count: vLLM's suffix proposer remembers what it answered before.
    for side in sides:
        side.ask(prompts[0], length)
    samples = []
    with progress("engines", (len(prompts) - 1) * len(sides), "answers") as meter:
        for prompt in prompts[1:]:
            shuffle.shuffle(order)
            answers = {}
            for side in order:
                answers[side.name] = side.ask(prompt, length)
                meter.advance(1)
            samples.append({"prompt_tokens": len(prompt), "answers": answers})
    return samples


def _record(options: argparse.Namespace, samples: list[dict[str, Any]]) -> None:
    from draftwing.core.machine import usable_cores
    from draftwing.core.provenance import here
    from draftwing.core.statistics import median, ratio_of_sums
    from draftwing.formats.records import Record, write_record

    def pace(sample: dict[str, Any], name: str) -> float:
        answer = sample["answers"][name]
        return float(answer["tokens"] / answer["seconds"])

    figures = {}
    for name in samples[0]["answers"]:
        own = f"{name.split(':')[0]}: plain"
        answers = [sample["answers"][name] for sample in samples]
        ratios = [pace(sample, name) / pace(sample, own) for sample in samples]
        rate = ratio_of_sums([one["tokens"] for one in answers], [one["seconds"] for one in answers])
        figures[name] = {"tok_s": vars(rate), "speed_up": vars(median(ratios))}
        print(f"{name:32} {rate.estimate:6.1f} tok/s  {median(ratios).estimate:.2f} x its own plain decoding")
    settings = {"prompts": options.prompts, "split": options.split, "length": options.length, "vllm": VLLM}
    record = Record(
        kind="sweep",
        provenance=here(usable_cores()),
        settings=settings,
        digests={},
        figures=figures,
        samples=samples,
    )
    write_record(options.out, record)


if __name__ == "__main__":
    main()
