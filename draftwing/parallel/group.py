"""The process group of a `torchrun` launch, or a group of one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

# One process may make all answers while the others wait; torchrun itself ends them when a process dies.
TIMEOUT = timedelta(hours=12)


@dataclass(frozen=True)
class Group:
    """Who this process is among how many."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True for the process that writes and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The elementwise sum over all processes; the tensor itself in a group of one."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over all processes, in one message."""
        if self.size == 1:
            return
        # Every process must send the same layout, so a missing gradient counts as zeros.
        grads = [
            parameter.grad if parameter.grad is not None else torch.zeros_like(parameter) for parameter in parameters
        ]
        flat = self.sum(torch.cat([grad.flatten() for grad in grads]))
        offset = 0
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = flat[offset : offset + grad.numel()].view_as(grad)
            offset += grad.numel()

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.size > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1:
            dist.destroy_process_group()


def join(device: torch.device) -> Group:
    """Join the group that torchrun announces in the environment; alone without one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Group()
    # Its functions take the group that stands when it is first imported as a default argument. torch imports it within
    # the first optimizer step; the group would then outlive destroy_process_group, and gloo's threads the interpreter,
    # where one that still frees a message aborts the process.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    return Group(dist.get_rank(), size)
