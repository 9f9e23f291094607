"""Safetensors folders, opened lazily (memory-mapped) and checked before any tensor is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.formats.files import read_object, whole_file

REMEDY = "Download or convert the model again; the file is incomplete or damaged."


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write one safetensors file atomically."""
    with whole_file(path) as temporary:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata=metadata)
        except SafetensorError as error:  # a full disk, in the words of the Rust library
            raise OSError(str(error)) from error


def open_tensors(path: Path) -> Any:
    """Open one safetensors file; UserError when it is truncated or corrupt."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise UserError(f"There is no tensor file {path}.", REMEDY) from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"The tensor file {path} can not be read ({error}).", REMEDY) from None


class TensorFolder:
    """The tensors of `model.safetensors`, or of the shards that `model.safetensors.index.json` lists.

    `take` hands each tensor out once; `require_nothing_left` then proves that none was overlooked.
    """

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        single = folder / "model.safetensors"
        self.folder = folder
        self._place: dict[str, Any] = {}
        if index.exists():
            weight_map = read_object(index, "weight index", REMEDY).get("weight_map")
            if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
                raise UserError(f"The weight index at {index} has no map from tensors to shards.", REMEDY)
            for name in sorted(set(weight_map.values())):
                self._open(folder / name)
            absent = sorted(set(weight_map) - set(self._place))
            if absent:
                raise UserError(f"{folder}: shards lack {len(absent)} tensors of the index, first {absent[0]}.", REMEDY)
        elif single.exists():
            self._open(single)
        else:
            raise UserError(
                f"{folder} holds no model.safetensors (nor an index of shards).",
                "Convert the checkpoint to safetensors; pickled weights are not loaded.",
            )

    def _open(self, path: Path) -> None:
        file = open_tensors(path)
        for name in file.keys():  # noqa: SIM118 (safe_open is not a dict)
            self._place[name] = file

    def names(self) -> set[str]:
        """Names not taken yet."""
        return set(self._place)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the mapped tensor and strike it off; UserError when it is missing or has another shape."""
        if name not in self._place:
            raise UserError(
                f"{self.folder} lacks the tensor {name}.",
                "A missing weight is never made up: get the whole checkpoint.",
            )
        try:
            tensor: Tensor = self._place.pop(name).get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise UserError(f"The tensor {name} in {self.folder} can not be read ({error}).", REMEDY) from None
        if tuple(tensor.shape) != shape:
            raise UserError(
                f"{self.folder}: {name} has shape {tuple(tensor.shape)}, the config says {shape}.",
                "Config and weights belong to different models: get both from one place.",
            )
        return tensor

    def require_nothing_left(self, harmless: tuple[str, ...] = ()) -> None:
        """UserError when tensors remain that nothing used, except names ending in one of `harmless`."""
        left = sorted(name for name in self._place if not name.endswith(harmless or ("\0",)))
        if left:
            raise UserError(
                f"{self.folder} holds {len(left)} tensors that this architecture does not use, first {left[0]}.",
                "Check that config.json names the right architecture.",
            )
