"""A drafter's first weights."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwing.drafter.config import DrafterConfig
from draftwing.drafter.model import Drafter


def new_drafter(config: DrafterConfig, head_DH: Tensor, final_norm_H: Tensor, feature_scale: float, seed: int) -> Drafter:
    """A fresh drafter whose head starts as the target's head rows and final norm.

    `feature_scale` is the root mean square of the features: fc starts so that its states have unit size,
    whatever the size of the target's residual stream.
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
        drafter.fc.weight.div_(feature_scale)
        if head_DH.shape[1] == config.hidden_size:
            drafter.lm_head.weight.copy_(head_DH)
            drafter.norm.weight.copy_(final_norm_H)
    return drafter
