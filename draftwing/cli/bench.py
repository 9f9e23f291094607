"""`draftwing bench`: with and without speculation, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwing.cli import options
from draftwing.cli.boundary import print_json, verb
from draftwing.core.console import note, progress
from draftwing.core.errors import UserError

if TYPE_CHECKING:
    from draftwing.capture.prompts import Prompt
    from draftwing.cli.parts import Loaded
    from draftwing.engine.request import Request
    from draftwing.ops.sampling import Sampling

# Position acceptances in the table; the record has all.
SHOWN = 8


@verb
def bench(
    prompts: options.Prompts = "sharegpt",
    prompts_format: options.PromptsFormat = "auto",
    split: options.Split = "heldout",
    limit: options.Limit = 20,
    target: options.Target = "default",
    drafter: options.Drafter = "default",
    tree: options.Tree = "auto",
    proposers: options.Proposers = None,
    lookup_earlier: options.Earlier = 0,
    max_prompt_tokens: options.MaxPrompt = 512,
    max_new_tokens: options.MaxNew = 256,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    record: Annotated[Path | None, typer.Option(help="Write the record here [default: runs/bench-DATE.json].")] = None,
    context: options.Context = None,
    taps_convention: options.Convention = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    ignore_config_key: options.IgnoreKey = None,
    control_tokens: options.ControlTokens = "text",
    json: options.Json = False,
) -> None:
    """Answer held-out prompts with and without speculation, sides alternating, and compare.

    Example: `draftwing bench --prompts humaneval --split all --limit 20`
    """
    from draftwing.cli import parts  # noqa: PLC0415
    from draftwing.core.provenance import here  # noqa: PLC0415
    from draftwing.formats.files import digest_of  # noqa: PLC0415
    from draftwing.formats.records import Record, record_path, write_record  # noqa: PLC0415
    from draftwing.measure.bench import figures, raw_samples, run_pairs  # noqa: PLC0415
    from draftwing.measure.divergence import rounding_between_shapes  # noqa: PLC0415
    from draftwing.ops.sampling import Sampling  # noqa: PLC0415

    used = parts.set_threads(threads)
    sampling = Sampling(temperature, top_k, top_p, min_p, seed)
    chosen = parts.parse_prompts(prompts, split, None, prompts_format)
    loaded = parts.open_target(target, dtype, device, ignore_config_key, control_tokens)
    with_drafter = parts.open_drafter(drafter, loaded, taps_convention)
    how = parts.Speculation(tree, proposers, lookup_earlier)
    engine = parts.make_engine(loaded, with_drafter, how, context)
    if not engine.planner.proposers:
        raise UserError("There is nobody to propose.", "Say --proposers lookup, or name a --drafter.")
    requests = _requests(chosen, loaded, limit, max_prompt_tokens, max_new_tokens, sampling)
    with progress("bench", len(requests), "prompts") as meter:
        pairs = run_pairs(engine, requests, meter)
    summary = figures(pairs)
    longest = max(pairs, key=lambda pair: len(pair.plain.tokens))
    text = [*requests[longest.id].prompt, *longest.plain.tokens]
    summary["rounding_between_shapes"] = rounding_between_shapes(engine.backend, text, _usual_rows(summary))
    summary["calibration"] = engine.planner.calibration.table()
    settings: dict[str, Any] = {
        "prompts": prompts,
        "split": split,
        "drafter": drafter,
        "tree": tree,
        "proposers": [proposer.name for proposer in engine.planner.proposers],
        "lookup_earlier": lookup_earlier,
        "max_prompt_tokens": max_prompt_tokens,
        "max_new_tokens": max_new_tokens,
        "sampling": vars(sampling),
        **parts.arithmetic(loaded),
    }
    kept = Record(
        kind="bench",
        provenance=here(used),
        settings=settings,
        digests={
            "target": loaded.target.weights.fingerprint,
            **({"vocabulary_map": with_drafter.vocabulary.digest} if with_drafter else {}),
            "prompts": digest_of(sorted(requests)),
        },
        figures=summary,
        samples=raw_samples(pairs),
    )
    path = record or record_path(kept)
    write_record(path, kept)
    if json:
        print_json({"record": str(path), "settings": settings, **summary})
    else:
        _table(summary, settings)
        note(f"Record: {path}")


def _usual_rows(summary: dict[str, Any]) -> int:
    """Rows of a usual verify, at least two."""
    return max(2, round(summary["tree_size"] or 2))


def _requests(
    prompts: list[Prompt],
    loaded: Loaded,
    limit: int | None,
    max_prompt_tokens: int,
    max_new_tokens: int,
    sampling: Sampling,
) -> dict[str, Request]:
    from draftwing.engine.request import Request  # noqa: PLC0415

    requests: dict[str, Request] = {}
    for prompt in prompts:
        tokens = tuple(loaded.tokenizer.prompt(list(prompt.messages)))
        if len(tokens) <= max_prompt_tokens:
            requests[prompt.id] = Request(tokens, max_new_tokens, sampling)
        if limit is not None and len(requests) == limit:
            break
    if not requests:
        raise UserError(f"Every prompt is longer than {max_prompt_tokens} tokens.", "Raise --max-prompt-tokens.")
    return requests


def _table(summary: dict[str, Any], settings: dict[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(
        title=f"{summary['prompts']} prompts of {settings['prompts']} ({settings['split']}), "
        f"tree {settings['tree']} of {'+'.join(settings['proposers'])}, {settings['dtype']}"
    )
    # A narrow terminal breaks words; it never drops letters.
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right", overflow="fold")
    table.add_column("95 % interval", justify="right", overflow="fold")

    def row(name: str, value: dict[str, float] | None, unit: str = "", digits: int = 2) -> None:
        if value:
            table.add_row(
                name,
                f"{value['estimate']:.{digits}f}{unit}",
                f"{value['low']:.{digits}f} to {value['high']:.{digits}f}",
            )

    row("plain decoding", summary["plain_tok_s"], " tok/s", 1)
    row("speculative decoding", summary["speculative_tok_s"], " tok/s", 1)
    row("speed-up (median)", summary["speed_up"], " x")
    row("speed-up with prefill (median)", summary["speed_up_with_prefill"], " x")
    row("accept length", summary["accept_length"])
    acceptances = [f"{value:.2f}" if value is not None else "-" for value in summary["position_acceptances"]]
    deeper = len(acceptances) - SHOWN
    table.add_row(
        "position acceptances", " ".join(acceptances[:SHOWN]), f"and {deeper} deeper ones" if deeper > 0 else ""
    )
    for name, share in summary["accepted_by"].items():
        table.add_row(f"tokens from {name}", f"{100 * share:.0f} %", "")
    asked = ", ".join(f"{name} in {100 * share:.0f} %" for name, share in summary["asked"].items())
    size = summary["tree_size"]
    table.add_row("nodes of a tree", f"{size:.1f}" if size else "-", asked)
    if summary["cycle_ms"]:
        phases = dict(summary["cycle_ms"])
        whole, share = phases.pop("cycle"), phases.pop("overhead_share")
        table.add_row("a cycle", f"{whole:.1f} ms", f"overhead {100 * share:.1f} %")
        for name, spent in sorted(phases.items(), key=lambda phase: -phase[1]):
            table.add_row(f"  {name}", f"{spent:.2f} ms", "")
    if summary["looped"] is not None:
        table.add_row("of the text in loops or copies", f"{100 * summary['looped']:.0f} %", "")
    table.add_row("identical answers", f"{summary['identical']} of {summary['prompts']}", "")
    table.add_row("a logit's rounding between batch shapes", f"{summary['rounding_between_shapes']:.2g}", "")
    Console().print(table)
    _calibration(summary["calibration"])
    for difference in summary["differences"][:5]:
        typer.echo(
            f"First difference at token {difference['place']}: {difference['plain_token']} or "
            f"{difference['speculative_token']}, {difference['gap'] or 0:.3f} apart in the target's logits"
        )
    for line in summary["notes"]:
        typer.echo(line)


def _calibration(rows: list[dict[str, Any]]) -> None:
    """Estimated against observed, the buckets of each proposer joined by tenths of the estimate."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    joined: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        total = joined.setdefault((row["proposer"], min(9, int(10 * row["estimated"]))), [0, 0, 0])
        for place, value in enumerate((1, row["estimated"], row["observed"])):
            total[place] += value * row["trials"]
    table = Table(title="chance of acceptance, estimated and observed")
    for name in ("proposer", "between", "candidates", "estimated", "observed"):
        table.add_column(name, justify="left" if name == "proposer" else "right", overflow="fold")
    for (proposer, tenth), (trials, estimated, observed) in sorted(joined.items()):
        between = f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}"
        table.add_row(proposer, between, f"{trials:.0f}", f"{estimated / trials:.2f}", f"{observed / trials:.2f}")
    if joined:
        Console().print(table)
