"""`--weights FILE`: trained weights, of a `.safetensors` file or of one that `torch.save` wrote.
All of a model's weights are in it, or it is refused: none stays random."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lostwax.errors import CommandError

_INSIDE = ("state_dict", "model_state_dict", "model", "module", "weights")
"""The keys under which trainers keep the weights of a checkpoint, beside optimizers and epochs."""
_PREFIXES = ("module.", "_orig_mod.", "model.")
"""What DataParallel, torch.compile and trainers put before every name."""


def load_weights(module: Any, file: str) -> None:
    """Put the weights of a file into a module."""
    if not isinstance(module, nn.Module):
        raise CommandError(f"--weights {file!r}: the model is a function, and has no weights")
    found = _fit_names(_read_weights(file), module.state_dict())
    own = module.state_dict()
    missing, strange = sorted(own.keys() - found.keys()), sorted(found.keys() - own.keys())
    sizes = [
        f"{name} is {_write_size(found[name])} there, {_write_size(own[name])} in the model"
        for name in own
        if name in found and own[name].shape != found[name].shape
    ]
    told = [
        *_tell(f"{len(sizes)} of other sizes", sizes),
        *_tell(f"{len(missing)} of the model's are not in it", missing),
        *_tell(f"{len(strange)} have no place in the model", strange),
    ]
    if told:
        raise CommandError(
            f"--weights {file!r} is of another model\n  "
            + "\n  ".join(told)
            + "\n  instead: the options with which it was trained, MODEL?num_classes=10"
        )
    module.load_state_dict(found, assign=any(t.is_meta for t in own.values()))


def _write_size(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"


def _tell(head: str, names: list[str]) -> list[str]:
    return [f"{head}: {', '.join(names[:3])}{', …' * (len(names) > 3)}"] if names else []


def _read_weights(file: str) -> dict[str, torch.Tensor]:
    with Path(file).open("rb") as opened:
        start = opened.read(24)
    if start.startswith(b"version https://git-lfs"):
        raise CommandError(
            f"--weights {file!r} is a pointer of git-lfs, not the weights\n  instead: git lfs pull"
        )
    if file.endswith(".safetensors"):
        return _read_safetensors(file)
    if not start.startswith((b"PK", b"\x80")):  # zip, and the pickles of old
        raise _make_damaged(file, "torch.save did not write it")
    try:
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise CommandError(
                f"--weights {file!r} has more in it than weights, and loading that would run its "
                "code\n  instead: torch.save(model.state_dict(), 'weights.pth'), or a factory of "
                "your own, which loads it"
            ) from error
        raise _make_damaged(file, error) from error
    for key in _INSIDE:
        inner = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(inner, Mapping):
            found = inner
            break
    if not isinstance(found, Mapping) or not all(map(torch.is_tensor, found.values())):
        raise CommandError(
            f"--weights {file!r} is no state_dict, but a {type(found).__name__}\n"
            "  instead: torch.save(model.state_dict(), 'weights.pth')"
        )
    return dict(found)


def _read_safetensors(file: str) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise CommandError(
            f"--weights {file!r}: safetensors is not installed\n  instead: pip install safetensors"
        ) from error
    try:
        return dict(load_file(file))
    except SafetensorError as error:
        raise _make_damaged(file, error) from error


def _make_damaged(file: str, error: Exception | str) -> CommandError:
    return CommandError(
        f"--weights {file!r} is damaged: {error}\n  instead: fetch or save the file again"
    )


def _fit_names(found: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Names as the module has them, if all are its own but for one word before each."""
    for prefix in _PREFIXES:
        if not found.keys() & own.keys() and all(name.startswith(prefix) for name in found):
            return {name.removeprefix(prefix): value for name, value in found.items()}
    return found
