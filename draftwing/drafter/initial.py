"""A drafter's first weights."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwing.drafter.config import DrafterConfig
from draftwing.drafter.model import Drafter


def new_drafter(config: DrafterConfig, head_DH: Tensor, final_norm_H: Tensor, scale_A: Tensor, seed: int) -> Drafter:
    """A fresh drafter whose head starts as the target's head rows and final norm.

    `scale_A` is the typical size of each tap (`tap_scale`): fc starts so that every tap has the same say and its
    states have unit size, whatever the size of the target's residual stream at each boundary.
    """
    generator = torch.Generator().manual_seed(seed)
    drafter = Drafter(config)
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, weight.shape[1] ** -0.5, generator=generator)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                # The layer starts near the identity: what it adds is learned.
                weight.mul_(0.1)
        drafter.fc.weight.unflatten(1, (config.taps, -1)).div_(scale_A[:, None])
        if head_DH.shape[1] == config.hidden_size:
            drafter.lm_head.weight.copy_(head_DH)
            drafter.norm.weight.copy_(final_norm_H)
    return drafter


def tap_scale(states_TAH: Tensor) -> Tensor:
    """Typical root mean square of each tap [A]: the median over tokens, since a few tokens (the first above all)
    have states a hundred times as large as the others."""
    scale_A: Tensor = states_TAH.float().square().mean(-1).sqrt().median(0).values
    return scale_A.clamp_min(1e-6)
