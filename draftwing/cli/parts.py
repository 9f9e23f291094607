"""Assemble target, tokenizer, drafter and engine from what was typed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftwing.core.errors import UserError
from draftwing.core.machine import usable_cores
from draftwing.core.settings import keep_freed_memory

if TYPE_CHECKING:
    from draftwing.capture.prompts import Format, Prompt, Split
    from draftwing.drafter.checkpoint import LoadedDrafter
    from draftwing.engine.engine import Engine
    from draftwing.formats.answers import TokenAnswer
    from draftwing.target.load import Target
    from draftwing.target.tokenizer import Control, Tokenizer

SHIPPED = Path(__file__).resolve().parents[2] / "drafters" / "smollm2-135m-instruct"
USUAL_CONTEXT = 4096


@dataclass(frozen=True)
class Loaded:
    """A target with its tokenizer."""

    target: Target
    tokenizer: Tokenizer


def set_threads(threads: int, *, batches: bool = False) -> int:
    """Set torch's threads; 0 means the usable cores. Returns the number in use.

    `batches` is for verbs that allocate large blocks over and over, and would rather keep them.
    """
    import torch  # noqa: PLC0415 (torch loads only when a verb runs)

    if threads < 0:
        raise UserError(f"threads is {threads}.", "Give a positive number, or 0 for all usable cores.")
    torch.set_num_threads(threads or usable_cores())
    if batches:
        keep_freed_memory()
    return torch.get_num_threads()


def open_target(name: str, dtype: str, device: str, ignore_keys: list[str] | None, control: Control = "text") -> Loaded:
    """Load a target and its tokenizer."""
    from draftwing.target.load import load_target  # noqa: PLC0415
    from draftwing.target.tokenizer import Tokenizer  # noqa: PLC0415

    target = load_target(name, dtype, device, tuple(ignore_keys or ()))
    return Loaded(target, Tokenizer(target.folder, control))


def open_drafter(name: str, loaded: Loaded, convention: str | None) -> LoadedDrafter | None:
    """Load a drafter in the target's dtype, None for 'none'; UserError when it belongs to another target."""
    from draftwing.drafter.checkpoint import load_drafter  # noqa: PLC0415
    from draftwing.formats.contract import require_same_target  # noqa: PLC0415
    from draftwing.target.config import require_taps  # noqa: PLC0415
    from draftwing.target.load import identity  # noqa: PLC0415

    if convention not in {None, "boundary", "output"}:
        raise UserError(f"There is no taps convention {convention!r}.", "Say boundary or output.")
    if name == "none":
        return None
    folder = SHIPPED if name == "default" else Path(name)
    if not folder.is_dir():
        raise UserError(f"There is no drafter folder {folder}.", "Train one with `draftwing train`, or name a folder.")
    head = loaded.target.weights.head
    drafter = load_drafter(folder, head.dtype, head.device, convention)  # type: ignore[arg-type]
    config, sizes = loaded.target.config, drafter.model.config
    if drafter.contract:
        require_same_target(
            identity(loaded.target, loaded.tokenizer), drafter.contract.capture.target, f"The drafter {folder}"
        )
    if (sizes.target_hidden_size, sizes.hidden_size, sizes.vocab_size) != (
        config.hidden_size,
        config.hidden_size,
        config.vocab_size,
    ):
        raise UserError(
            f"The drafter {folder} is for hidden size {sizes.target_hidden_size} and {sizes.vocab_size} tokens, "
            f"the target has {config.hidden_size} and {config.vocab_size}.",
            "Load it with the target that it was made for.",
        )
    require_taps(drafter.taps, config.layers)
    return drafter


def arithmetic(loaded: Loaded) -> dict[str, str]:
    """What computes, for a record's settings."""
    head = loaded.target.weights.head
    return {"dtype": str(head.dtype).removeprefix("torch."), "device": str(head.device), "backend": "torch"}


@dataclass(frozen=True)
class Speculation:
    """How to speculate, as typed."""

    tree: str = "auto"
    proposers: str | None = None
    earlier: int = 0


def make_engine(loaded: Loaded, drafter: LoadedDrafter | None, how: Speculation | None, context: int | None) -> Engine:
    """An engine for one sequence; one that decodes plainly when `how` is None."""
    from draftwing.engine.cost import kept_cost  # noqa: PLC0415
    from draftwing.engine.engine import Engine  # noqa: PLC0415
    from draftwing.engine.proposers.base import Proposer  # noqa: PLC0415
    from draftwing.engine.proposers.drafter import EagleProposer  # noqa: PLC0415
    from draftwing.engine.proposers.lookup import Earlier, Lookup  # noqa: PLC0415
    from draftwing.engine.shape import parse_shape  # noqa: PLC0415

    backend = loaded.target.decoder(1, context or min(loaded.target.config.max_context, USUAL_CONTEXT))
    if how is None:
        return Engine(backend, loaded.tokenizer)
    shape = parse_shape(how.tree)
    names = _proposers(how.proposers, drafter)
    proposers: list[Proposer] = []
    if "drafter" in names and drafter:
        proposers.append(EagleProposer(drafter, backend.embed, backend.cache.capacity))
    if "lookup" in names:
        proposers.append(Lookup(Earlier(max(4, how.earlier)) if how.earlier else None))
    taps = drafter.taps if drafter and "drafter" in names else ()
    costs = kept_cost(backend, loaded.target.weights.fingerprint, taps) if shape.auto and proposers else None
    return Engine(backend, loaded.tokenizer, proposers, shape, costs)


def _proposers(typed: str | None, drafter: LoadedDrafter | None) -> list[str]:
    if typed is None:
        return ["drafter", "lookup"]
    names = [name.strip() for name in typed.split(",")]
    for name in names:
        if name not in {"drafter", "lookup"}:
            raise UserError(f"There is no proposer {name!r}.", "Say drafter, lookup or drafter,lookup.")
    if len(set(names)) < len(names):
        raise UserError(f"--proposers {typed} names one twice.", "Name each once.")
    if "drafter" in names and drafter is None:
        raise UserError("--proposers asks for a drafter, and there is none.", "Say --proposers lookup.")
    return names


def parse_taps(text: str | None, loaded: Loaded) -> tuple[int, ...]:
    """Boundaries as typed, or the usual three; UserError when they do not fit the target."""
    from draftwing.target.config import default_taps, require_taps  # noqa: PLC0415

    if text is None:
        return default_taps(loaded.target.config)
    try:
        taps = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--taps {text} is not a list of numbers.", "Write them as 2,15,27.") from None
    require_taps(taps, loaded.target.config.layers)
    return taps


def parse_prompts(
    source: str, split: str, limit: int | None, form: Format = "auto", *, answered: bool = False
) -> list[Prompt]:
    """Read prompts with the split checked; `answered` keeps the answers that they hold."""
    from draftwing.capture.prompts import read_prompts  # noqa: PLC0415

    return read_prompts(source, _split(split), limit, form=form, answered=answered)


def parse_answers(path: Path, split: str, limit: int | None, loaded: Loaded) -> list[TokenAnswer]:
    """Read answers as token ids; the split is that of their prompts. UserError when none is left."""
    from draftwing.capture.prompts import is_heldout  # noqa: PLC0415
    from draftwing.formats.answers import read_answers  # noqa: PLC0415

    wanted = _split(split)
    answers = read_answers(path, loaded.target.config.vocab_size)
    kept = [answer for answer in answers if wanted == "all" or is_heldout(answer.id) == (wanted == "heldout")]
    if not kept:
        raise UserError(f"{path} holds no answers of the split {split}.", "Choose --split all.")
    return kept[:limit]


def _split(text: str) -> Split:
    if text not in {"all", "train", "heldout"}:
        raise UserError(f"There is no split {text!r}.", "Choose all, train or heldout.")
    return text  # type: ignore[return-value]
