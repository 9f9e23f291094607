"""Matrix products with a frozen weight, laid out once for the processor.

A plain product of a few rows reads the weight in an order that suits nobody. With the layout made at load, a few rows
share each read of it, so that verifying a short chain costs about as much as one token.

Shapes: R rows in any leading dimensions, I input width, O output width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# The layout is chosen for this many rows; it serves any number.
_EXPECTED_ROWS = 16
_PACKED_DTYPES = (torch.bfloat16, torch.float32)


class Product:
    """x @ weight.T + bias, bias optional. `nbytes` is what a product reads of the weight."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        self._weight_OI, self._bias_O = weight_OI, bias_O
        self._packed: Any = None
        self.nbytes: int = weight_OI.nbytes
        if can_pack(weight_OI):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), _EXPECTED_ROWS)
            # The layout is a copy: the weight it came from need not stay in memory.
            self._weight_OI = weight_OI.new_empty(0)

    def __call__(self, x_RI: Tensor) -> Tensor:
        """The product [R, O]."""
        if self._packed is None:
            return F.linear(x_RI, self._weight_OI, self._bias_O)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x_RI, self._packed, self._bias_O, "none", [], "")
        return out


def can_pack(weight: Tensor) -> bool:
    """True on a CPU where torch has oneDNN and the dtype has a packed product."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in _PACKED_DTYPES
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
