"""Whether an exported program does what the module does: outputs with their strides, buffers
afterwards, gradients of the parameters.

Both sides start from one state and one seed, so dropout drops the same. Arithmetic is mostly in
double precision: what remains is the order of additions, and a wrong program is far away from it.
Must not know of libraries or of how programs are made.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest difference, in parts of the largest value. Coarse for double precision, since libraries
compute parts of their models in single."""

NOISE = 5
"""How much farther from eager a program may be than eager from itself with other last bits, or from
the same in double precision."""


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


def run_exactly(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
    """The same in double precision."""
    call = pytree.tree_map_only(
        Tensor, lambda t: t.double() if t.is_floating_point() else t, (args, kwargs)
    )
    return run(copy.deepcopy(module).double(), *call)


def run_noisy(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], around: Any, noise: float
) -> Run:
    """The same with weights that are off by a random part of themselves, at most `noise`."""
    module = copy.deepcopy(module)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1 + noise * (2 * torch.rand_like(parameter) - 1))
    return run(module, args, kwargs, around)


def weighted(output: Tensor) -> Tensor:
    """A number that depends on each element in its own way."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64, device=output.device)
    return (output * weights.reshape(output.shape)).sum()


def check(program: Run, module: Run, others: Sequence[Run] = ()) -> None:
    """Raises DiffersError with all that differs by more than its dtype allows. `others` are what
    the module does with its weights in the last bits different, and in double precision: so much
    is allowed, several times. One such run alone may be near by chance."""
    runs = (program, module, *others)
    found = [*_outputs(*(run.outputs for run in runs))]
    for what, name in (("buffer", "buffers"), ("gradient of", "gradients")):
        found += _named(what, *(getattr(run, name) for run in runs))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise DiffersError(found[0] + more)


def _outputs(ours: list[Any], eager: list[Any], *others: list[Any]) -> list[str]:
    if len(ours) != len(eager):
        return [f"{len(ours)} outputs, eager has {len(eager)}"]
    found = [
        difference(f"output {i}", *each)
        for i, each in enumerate(zip(ours, eager, *others, strict=True))
    ]
    return [text for text in found if text]


def _named(
    what: str, ours: dict[str, Tensor], eager: dict[str, Tensor], *others: dict[str, Tensor]
) -> list[str]:
    found = [f"{what} {n} is missing" for n in eager if n not in ours]
    found += [f"{what} {n} is not eager's" for n in ours if n not in eager]
    common = [n for n in eager if n in ours]
    texts = [
        difference(f"{what} {n}", ours[n], eager[n], *(each.get(n) for each in others))
        for n in common
    ]
    return found + [text for text in texts if text]


def difference(what: str, ours: Any, eager: Any, *others: Any) -> str:
    """How two results differ; nothing if they do not. `others`: what eager's might be as well."""
    if not isinstance(eager, Tensor):
        return "" if type(ours) is type(eager) and ours == eager else f"{what}: {ours} for {eager}"
    for name in ("shape", "dtype", "device"):
        if getattr(ours, name) != getattr(eager, name):
            return f"{what}: {name} {getattr(ours, name)}, eager {getattr(eager, name)}"
    if ours.stride() != eager.stride() and what.startswith("output"):
        return f"{what}: strides {ours.stride()}, eager {eager.stride()}"
    alike = [o for o in others if isinstance(o, Tensor) and o.shape == eager.shape]
    return _values(what, *(each.detach() for each in (ours, eager, *alike)))


def _values(what: str, ours: Tensor, eager: Tensor, *others: Tensor) -> str:
    if not eager.is_floating_point() and not eager.is_complex():
        is_same = torch.equal(ours, eager) or not all(torch.equal(o, eager) for o in others)
        return "" if is_same else f"{what}: other values"
    if not torch.equal(eager.isfinite(), ours.isfinite()):
        return f"{what}: not finite where eager is, or the reverse"
    scale = max(_find_largest(eager), 1e-3)
    off = _find_largest(ours - eager) / scale
    spread = max((_find_largest(other - eager) for other in others), default=0.0)
    allowed = TOLERANCE.get(eager.dtype, 1e-2) + NOISE * spread / scale
    return f"{what}: off by {off:.1e} of its largest value" if off > allowed else ""


def _find_largest(tensor: Tensor) -> float:
    found = tensor[tensor.isfinite()].abs()
    return found.max().item() if found.numel() else 0.0
