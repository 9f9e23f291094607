"""Muon for the layer's matrices, AdamW for the head and the norms, under one cosine schedule."""

from __future__ import annotations

import math
from typing import Any

import torch

from draftwing.drafter.model import Drafter


class Optimizer:
    """Both optimisers as one. `share` is how much of the run is done, in [0, 1]."""

    def __init__(self, drafter: Drafter, muon_lr: float, adam_lr: float, weight_decay: float, warmup: float) -> None:
        matrices: list[torch.nn.Parameter] = []
        others: list[torch.nn.Parameter] = []
        for name, parameter in drafter.named_parameters():
            (matrices if parameter.ndim == 2 and not name.startswith("lm_head") else others).append(parameter)
        self._muon = torch.optim.Muon(matrices, lr=muon_lr, weight_decay=weight_decay)
        self._adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self._peaks = ((self._muon, muon_lr), (self._adam, adam_lr))
        self._warmup = warmup

    def step(self, share: float) -> None:
        """Update the weights from their gradients and clear these."""
        scale = schedule(share, self._warmup)
        for optimizer, peak in self._peaks:
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """State of both, for a checkpoint."""
        return {"muon": self._muon.state_dict(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a checkpoint's state."""
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])


def schedule(share: float, warmup: float) -> float:
    """Linear warm-up over the first `warmup` of the run, then a cosine down to a fiftieth."""
    if share < warmup:
        return share / warmup
    along = (share - warmup) / (1 - warmup)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * along))
