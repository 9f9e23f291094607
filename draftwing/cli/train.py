"""`draftwing train`: train a drafter on features, or on the fly."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from draftwing.cli import options
from draftwing.cli.boundary import print_json, verb
from draftwing.core.errors import UserError

if TYPE_CHECKING:
    from draftwing.capture.on_the_fly import OnTheFly
    from draftwing.capture.prompts import Format
    from draftwing.cli.parts import Loaded
    from draftwing.parallel.group import Group

ON_THE_FLY_BATCH = 64


@verb
def train(
    out: options.Out,
    features: Annotated[Path | None, typer.Option(help="Features folder written by `draftwing capture`.")] = None,
    heldout: Annotated[
        Path | None, typer.Option(help="Features of held-out prompts, for the figures of each pass.")
    ] = None,
    on_the_fly: Annotated[
        bool, typer.Option("--on-the-fly", help="No store: run the target inside training, on --prompts.")
    ] = False,
    prompts: options.Prompts = "sharegpt",
    prompts_format: options.PromptsFormat = "auto",
    answers: options.Answers = None,
    limit: options.Limit = None,
    target: options.Target = "default",
    taps: options.Taps = None,
    epochs: Annotated[int, typer.Option(min=1, max=10_000, help="Passes over the samples.")] = 3,
    depth: Annotated[int, typer.Option(min=1, max=64, help="Steps of the training-time test.")] = 5,
    step_weight: Annotated[
        float,
        typer.Option(min=1e-3, max=10, callback=options.finite, help="Weight of step j is this to the power of j."),
    ] = 0.8,
    later_rows: Annotated[
        Literal["all", "accepted"],
        typer.Option(help="Rows that go on past a step: all, or accepted (those whose draft was right)."),
    ] = "all",
    loops: Annotated[
        Literal["all", "twice"],
        typer.Option(help="Tokens of loops: all count, or twice (none from a period's third repetition on)."),
    ] = "all",
    batch_tokens: Annotated[
        int, typer.Option(min=1, max=options.MOST_SAMPLES, help="Tokens to an update, all processes together.")
    ] = 4096,
    draft_vocab_size: Annotated[
        int, typer.Option(min=1, max=options.MOST_TOKENS, help="Most frequent response tokens that can be drafted.")
    ] = 8192,
    intermediate_size: Annotated[
        int | None,
        typer.Option(min=1, max=options.MOST_TOKENS, help="Width of the drafter's MLP [default: the target's]."),
    ] = None,
    muon_lr: Annotated[
        float, typer.Option(min=0, max=10, callback=options.finite, help="Learning rate of the matrices (Muon).")
    ] = 0.02,
    adam_lr: Annotated[
        float, typer.Option(min=0, max=10, callback=options.finite, help="Learning rate of head and norms (AdamW).")
    ] = 1e-3,
    weight_decay: Annotated[
        float, typer.Option(min=0, max=10, callback=options.finite, help="Weight decay of the matrices.")
    ] = 0.0,
    warmup: Annotated[
        float,
        typer.Option(min=0, max=0.99, callback=options.finite, help="Share of the run that the learning rate rises."),
    ] = 0.02,
    clip: Annotated[
        float, typer.Option(min=1e-9, max=1e9, callback=options.finite, help="Largest norm of the whole gradient.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=-options.SEEDS, max=options.SEEDS, help="Seed of first weights and order.")
    ] = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    ignore_config_key: options.IgnoreKey = None,
    control_tokens: options.ControlTokens = "text",
    json: options.Json = False,
) -> None:
    """Train an EAGLE-3 drafter and write it to --out, with its contract and record.

    Stopping and repeating the command goes on from the last checkpoint, bit for bit. Under `torchrun` the
    processes share each batch.

    Example: `draftwing train --features features/train --heldout features/heldout --out drafters/mine`
    """
    from draftwing.cli import parts  # noqa: PLC0415
    from draftwing.core.provenance import here  # noqa: PLC0415
    from draftwing.formats.contract import Contract, Taps, require_same_target  # noqa: PLC0415
    from draftwing.formats.features import FeatureStore  # noqa: PLC0415
    from draftwing.formats.files import owned  # noqa: PLC0415
    from draftwing.formats.records import Record, write_record  # noqa: PLC0415
    from draftwing.parallel.group import join  # noqa: PLC0415
    from draftwing.target.load import identity, pick_device  # noqa: PLC0415
    from draftwing.train.loop import TrainSettings  # noqa: PLC0415
    from draftwing.train.run import Run  # noqa: PLC0415
    from draftwing.train.run import train as run  # noqa: PLC0415

    if (features is None) != (on_the_fly or answers is not None):
        raise UserError(
            "Training needs --features, --answers or --on-the-fly, one of the three.",
            "Give --features FOLDER, --answers FILE, or --on-the-fly with --prompts.",
        )
    used = parts.set_threads(threads, batches=True)
    settings = TrainSettings(
        epochs=epochs,
        depth=depth,
        step_weight=step_weight,
        later_rows=later_rows,
        loops=loops,
        batch_tokens=batch_tokens,
        draft_vocab_size=draft_vocab_size,
        intermediate_size=intermediate_size,
        muon_lr=muon_lr,
        adam_lr=adam_lr,
        weight_decay=weight_decay,
        warmup=warmup,
        clip=clip,
        seed=seed,
    )
    group = join(pick_device(device))
    loaded = parts.open_target(target, dtype, device, ignore_config_key, control_tokens)
    ours = identity(loaded.target, loaded.tokenizer)
    with owned(out) if group.leads else nullcontext():
        held = FeatureStore(heldout) if heldout else None
        if features:
            source: FeatureStore | OnTheFly = FeatureStore(features)
            contract = source.contract  # type: ignore[union-attr]
        else:
            boundaries = parts.parse_taps(taps, loaded)
            dtype_name = str(loaded.target.weights.head.dtype).removeprefix("torch.")
            contract = Contract(target=ours, taps=Taps(boundaries=boundaries), capture_dtype=dtype_name)
            if answers:
                source = _answered(loaded, answers, limit, boundaries)
            else:
                source = _on_the_fly(loaded, (prompts, prompts_format), limit, boundaries, out, group)
        for what, stated in (
            ("The features", contract),
            ("The held-out features", held.contract if held else contract),
        ):
            require_same_target(ours, stated.target, what)
            if stated.taps != contract.taps:
                raise UserError(
                    f"The held-out features hold {stated.taps.boundaries}, the others {contract.taps.boundaries}.",
                    "Capture them alike.",
                )
        figures = run(
            Run(loaded.target, source, held, contract, settings, loaded.target.weights.head.dtype, group), out
        )
        if group.leads:
            record = Record(
                kind="train",
                provenance=here(used),
                settings=settings.model_dump(),
                digests={"target": ours.weights_fingerprint, "config": ours.config_digest},
                figures={name: value for name, value in figures.items() if name != "losses"},
                samples=[{"losses": losses} for losses in figures["losses"]],
            )
            write_record(out / "record.json", record)
            _report(figures, out, json)
    group.close()


def _answered(loaded: Loaded, path: Path, limit: int | None, boundaries: tuple[int, ...]) -> OnTheFly:
    """Known answers; held-out prompts stay unseen."""
    from draftwing.capture.on_the_fly import OnTheFly  # noqa: PLC0415
    from draftwing.cli import parts  # noqa: PLC0415

    known = parts.parse_answers(path, "train", limit, loaded)
    longest = loaded.target.config.max_context
    answers = [answer for answer in known if len(answer.tokens) <= longest]
    capacity = max(len(answer.tokens) for answer in answers)
    return OnTheFly(loaded.target.decoder(1, capacity), answers, boundaries)


def _on_the_fly(
    loaded: Loaded, prompts: tuple[str, Format], limit: int | None, boundaries: tuple[int, ...], out: Path, group: Group
) -> OnTheFly:
    from draftwing.capture.on_the_fly import OnTheFly, collect_answers  # noqa: PLC0415
    from draftwing.capture.run import CaptureSettings, Source  # noqa: PLC0415
    from draftwing.cli import parts  # noqa: PLC0415

    settings = CaptureSettings()
    capacity = min(settings.context, loaded.target.config.max_context)
    chosen = parts.parse_prompts(prompts[0], "train", limit, prompts[1])
    worker = Source(loaded.target.decoder(ON_THE_FLY_BATCH, capacity), loaded.tokenizer, boundaries, settings)
    if group.leads:
        collect_answers(out / "answers.jsonl", chosen, worker)
    group.wait()
    answers = collect_answers(out / "answers.jsonl", chosen, worker)
    return OnTheFly(loaded.target.decoder(1, capacity), answers, boundaries)


def _report(figures: dict[str, Any], out: Path, json: bool) -> None:
    last = figures["evaluations"][-1] if figures["evaluations"] else None
    if json:
        print_json({"drafter": str(out), **{name: value for name, value in figures.items() if name != "losses"}})
    elif last:
        steps = len(last["position_acceptances"])
        typer.echo(f"{out}: held-out accept length {last['accept_length']:.3f} with {steps} steps (walked cycles)")
    else:
        typer.echo(f"{out}: trained; no held-out features were given, so nothing is known of its accept length")
