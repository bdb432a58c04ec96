"""Whether an exported program does what the module does: outputs with their strides, buffers
afterwards, gradients of the parameters.

Both sides start from one state and one seed, so dropout drops the same. Arithmetic is mostly in
double precision: what remains is the order of additions, and a wrong program is far away from it.
Must not know of libraries or of how programs are made.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest difference, in parts of the largest value. Coarse for double precision, since libraries
compute parts of their models in single."""


class DiffersError(Exception):
    """The program and the module do not agree."""


@dataclass
class Run:
    """What one call did."""

    outputs: list[Any]
    buffers: dict[str, Tensor]
    gradients: dict[str, Tensor]


def run(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], around: Any = None
) -> Run:
    """What a call does, with a context around it (autocast)."""
    torch.manual_seed(0)
    module.zero_grad()
    with around or nullcontext():
        outputs = pytree.tree_leaves(module(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
    loss = sum(weighted(o) for o in outputs if isinstance(o, Tensor) and o.requires_grad)
    if isinstance(loss, Tensor):
        loss.backward()
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    buffers = {n: b.detach().clone() for n, b in module.named_buffers()}
    return Run(outputs, buffers, gradients)


def weighted(output: Tensor) -> Tensor:
    """A number that depends on each element in its own way."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64, device=output.device)
    return (output * weights.reshape(output.shape)).sum()


def check(program: Run, module: Run, tolerance: float | None = None) -> None:
    """Raises DiffersError with all that differs by more than is given, or than its dtype allows."""
    found = [*_outputs(program.outputs, module.outputs, tolerance)]
    found += _named("buffer", program.buffers, module.buffers, tolerance)
    found += _named("gradient of", program.gradients, module.gradients, tolerance)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise DiffersError(found[0] + more)


def _outputs(ours: list[Any], eager: list[Any], tolerance: float | None) -> list[str]:
    if len(ours) != len(eager):
        return [f"{len(ours)} outputs, eager has {len(eager)}"]
    pairs = enumerate(zip(ours, eager, strict=True))
    found = [difference(f"output {i}", a, b, tolerance) for i, (a, b) in pairs]
    return [text for text in found if text]


def _named(
    what: str, ours: dict[str, Tensor], eager: dict[str, Tensor], tolerance: float | None
) -> list[str]:
    found = [f"{what} {n} is missing" for n in eager if n not in ours]
    found += [f"{what} {n} is not eager's" for n in ours if n not in eager]
    # What is lost in fewer bits is lost of all, also of gradients that should be 0.
    least = 0.0 if tolerance is None else max((_find_largest(t) for t in eager.values()), default=0)
    texts = [
        difference(f"{what} {n}", ours[n], eager[n], tolerance, least) for n in eager if n in ours
    ]
    return found + [text for text in texts if text]


def difference(
    what: str, ours: Any, eager: Any, tolerance: float | None = None, least: float = 0.0
) -> str:
    """How two results differ; nothing if they do not. `least`: what counts as a large value."""
    if not isinstance(eager, Tensor):
        return "" if type(ours) is type(eager) and ours == eager else f"{what}: {ours} for {eager}"
    for name in ("shape", "dtype", "device"):
        if getattr(ours, name) != getattr(eager, name):
            return f"{what}: {name} {getattr(ours, name)}, eager {getattr(eager, name)}"
    if ours.stride() != eager.stride() and what.startswith("output"):
        return f"{what}: strides {ours.stride()}, eager {eager.stride()}"
    allowed = TOLERANCE.get(eager.dtype, 1e-2) if tolerance is None else tolerance
    return _values(what, ours.detach(), eager.detach(), allowed, least)


def _find_largest(tensor: Tensor) -> float:
    found = tensor.detach()[tensor.isfinite()].abs()
    return found.max().item() if found.numel() else 0.0


def _values(what: str, ours: Tensor, eager: Tensor, tolerance: float, least: float) -> str:
    if not eager.is_floating_point() and not eager.is_complex():
        return "" if torch.equal(ours, eager) else f"{what}: other values"
    if not torch.equal(eager.isfinite(), ours.isfinite()):
        return f"{what}: not finite where eager is, or the reverse"
    a, b = ours[ours.isfinite()], eager[eager.isfinite()]
    scale = max(_find_largest(b), least, 1e-3)
    off = (a - b).abs().max().item() / scale if b.numel() else 0.0
    return f"{what}: off by {off:.1e} of its largest value" if off > tolerance else ""
