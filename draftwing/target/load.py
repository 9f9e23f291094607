"""From a name to a running target: the embedded default, a local folder, or a hub id."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from draftwing.core.errors import UserError
from draftwing.core.machine import cpu_has_bfloat16
from draftwing.formats.contract import TargetIdentity
from draftwing.formats.files import digest_of
from draftwing.target.config import TargetConfig, read_target_config
from draftwing.target.decoder import Decoder
from draftwing.target.pull import DEFAULT_NAMES, pull_default, pull_hub
from draftwing.target.tokenizer import Tokenizer
from draftwing.target.weights import TargetWeights, load_weights

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


def target_folder(name: str) -> Path:
    """The folder of a target, fetched first when it is the default or a hub id."""
    if name in DEFAULT_NAMES:
        return pull_default()
    if Path(name).is_dir():
        return Path(name)
    if Path(name).exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise UserError(
            f"There is no model folder {name}.",
            "Give a folder with config.json, a hub id like org/model, or 'default'.",
        )
    return pull_hub(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype asked for; 'auto' is bfloat16 on a GPU or on a processor that has it, float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" or cpu_has_bfloat16() else torch.float32
    if name not in DTYPES:
        raise UserError(f"There is no dtype {name!r}.", f"Choose auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


def pick_device(name: str) -> torch.device:
    """'auto' is the GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"There is no device {name!r}.", "Use --device cpu, or cuda where there is a GPU.") from None
    if device.type not in {"cpu", "cuda"}:
        raise UserError(f"The device {name} is not supported.", "Use --device cpu, or cuda where there is a GPU.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("There is no CUDA device here.", "Use --device cpu.")
    return device


@dataclass(frozen=True)
class Target:
    """Config and weights of a loaded target; `decoder` gives it a cache."""

    folder: Path
    config: TargetConfig
    weights: TargetWeights

    def decoder(self, slots: int = 1, context: int | None = None) -> Decoder:
        """A running target with `slots` sequences of up to `context` tokens (default: the model's limit)."""
        limit = self.config.max_context
        if context is not None and not 0 < context <= limit:
            raise UserError(f"A context of {context} does not fit this model.", f"Choose between 1 and {limit}.")
        return Decoder(self.config, self.weights, slots, context or limit)


def load_target(name: str, dtype: str = "auto", device: str = "auto", ignore_keys: tuple[str, ...] = ()) -> Target:
    """Load a target by name. Raises UserError for whatever is missing, damaged or not supported."""
    place = pick_device(device)
    folder = target_folder(name)
    config = read_target_config(folder, ignore_keys)
    return Target(folder, config, load_weights(folder, config, pick_dtype(dtype, place), place))


def identity(target: Target, tokenizer: Tokenizer) -> TargetIdentity:
    """What a contract says of this target."""
    config = target.config
    numbers = {name: value for name, value in asdict(config).items() if name not in {"name", "rope"}}
    return TargetIdentity(
        name=config.name,
        layers=config.layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        config_digest=digest_of({**numbers, "rope": config.rope.model_dump()}),
        weights_fingerprint=target.weights.fingerprint,
        tokenizer_digest=tokenizer.digest,
        template_digest=tokenizer.template_digest,
    )
