"""Root-mean-square norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale the last dimension of x to unit root mean square, times weight; computed in float32 inside."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same in plain steps, in float64."""
    wide = x.double()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype)
