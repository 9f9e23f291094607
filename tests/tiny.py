"""Small models made on the spot: random weights, a byte tokenizer with a chat template, four families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

SPECIAL = ["<|end|>", "<|start|>"]
VOCAB = 272
EOS = 256
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "pad_token_id": None,
}
CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def tiny_model(family: str = "llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random transformers model in float32 whose weights, norms and biases are all away from their defaults."""
    sizes = {**SIZES, **changes}
    if family == "qwen2":
        sizes.pop("head_dim")
        sizes["hidden_size"] = changes.get("hidden_size", 96)
    if "rope_parameters" not in sizes:
        sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    if family == "mistral":
        sizes.setdefault("sliding_window", None)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](**sizes)).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_(1 + 0.2 * torch.randn_like(weight))
            elif weight.ndim == 1:
                weight.copy_(0.1 * torch.randn_like(weight))
            else:
                # Wide enough that next-token distributions differ clearly from place to place.
                weight.copy_(
                    torch.randn_like(weight)
                    * (0.8 if "embed" in name or "lm_head" in name else 2.0)
                    / weight.shape[1] ** 0.5
                )
    return model


def save_tiny(folder: Path, family: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """Save a tiny model with its tokenizer and chat template."""
    model = tiny_model(family, seed, **changes)
    model.generation_config.eos_token_id = EOS
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: one token to a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = RawTokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=SPECIAL[0], chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
