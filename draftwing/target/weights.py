"""Target weights from safetensors: every tensor used once, checked, and fused where one product serves several."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.formats.tensors import TensorFolder
from draftwing.ops.linear import Product
from draftwing.target.config import TargetConfig

EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. `qkv` and `gate_up` are fused along their output rows."""

    attention_norm: Tensor
    qkv: Product
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True)
class TargetWeights:
    """The whole target. `head` is the embedding itself when they are tied; `logits` is the product with it."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor
    logits: Product
    fingerprint: str

    @property
    def read_bytes(self) -> int:
        """Bytes of the matrices, which a forward with logits reads once. (Norms are a thousandth of them.)"""
        layers = ((layer.qkv, layer.output, layer.gate_up, layer.down) for layer in self.layers)
        return self.logits.nbytes + sum(product.nbytes for products in layers for product in products)


def load_weights(folder: Path, config: TargetConfig, dtype: torch.dtype, device: torch.device) -> TargetWeights:
    """Load all tensors in `dtype`. Raises UserError for missing, leftover, misshapen or unreadable ones."""
    source, digest = TensorFolder(folder), hashlib.sha256()
    marked = _fingerprinted(config.layers)
    H, V = config.hidden_size, config.vocab_size

    def take(name: str, *shape: int) -> Tensor:
        tensor = source.take(name, shape)
        if name in marked:
            # As the file has it, so that it is the same for a load in any dtype.
            rows = tensor[:256] if name == EMBEDDING else tensor
            digest.update(rows.to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
        return tensor.to(device=device, dtype=dtype)

    embedding = take(EMBEDDING, V, H)
    layers = tuple(_layer(take, f"model.layers.{index}.", config) for index in range(config.layers))
    final_norm = take("model.norm.weight", H)
    if not config.tied:
        head = take("lm_head.weight", V, H)
    else:
        head = embedding
        if "lm_head.weight" in source.names() and not torch.equal(take("lm_head.weight", V, H), embedding):
            raise UserError(
                f"{folder}: config.json ties head and embedding, the weights hold a different head.",
                "Set tie_word_embeddings to what the model was trained with.",
            )
    source.require_nothing_left(harmless=("rotary_emb.inv_freq",))
    return TargetWeights(embedding, layers, final_norm, head, Product(head), digest.hexdigest())


def _layer(take, prefix: str, config: TargetConfig) -> LayerWeights:  # type: ignore[no-untyped-def]
    H, I, D = config.hidden_size, config.intermediate_size, config.head_dim  # noqa: E741
    rows = {"q": config.heads * D, "k": config.kv_heads * D, "v": config.kv_heads * D}
    attention, mlp = prefix + "self_attn.", prefix + "mlp."

    def fused(stem: str, names: dict[str, int], width: int | None) -> Tensor:
        kind, shape = ("bias", ()) if width is None else ("weight", (width,))
        return torch.cat([take(f"{stem}{name}_proj.{kind}", size, *shape) for name, size in names.items()])

    pair = {"gate": I, "up": I}
    return LayerWeights(
        attention_norm=take(prefix + "input_layernorm.weight", H),
        qkv=Product(fused(attention, rows, H), fused(attention, rows, None) if config.qkv_bias else None),
        query_norm=take(attention + "q_norm.weight", D) if config.head_norms else None,
        key_norm=take(attention + "k_norm.weight", D) if config.head_norms else None,
        output=Product(
            take(attention + "o_proj.weight", H, rows["q"]),
            take(attention + "o_proj.bias", H) if config.output_bias else None,
        ),
        mlp_norm=take(prefix + "post_attention_layernorm.weight", H),
        gate_up=Product(fused(mlp, pair, H), fused(mlp, pair, None) if config.mlp_bias else None),
        down=Product(
            take(mlp + "down_proj.weight", H, I), take(mlp + "down_proj.bias", H) if config.mlp_bias else None
        ),
    )


def _fingerprinted(layers: int) -> set[str]:
    """The few tensors whose digest is the fingerprint (of the embedding, the first 256 rows)."""
    middle = f"model.layers.{layers // 2}.self_attn."
    return {
        EMBEDDING,
        "model.layers.0.input_layernorm.weight",
        *(f"{middle}{name}_proj.weight" for name in "qkv"),
        f"model.layers.{layers - 1}.mlp.down_proj.weight",
        "model.norm.weight",
    }
