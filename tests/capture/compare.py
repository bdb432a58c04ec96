"""What a run of a module leaves behind, and how two runs differ: the yardstick of capture's tests.

Values, sizes, dtypes and strides of results; inputs and state afterwards; what shares memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._ops import OpOverload

from lostwax.capture import export
from lostwax.ir.program import ExportedProgram


@dataclass
class Seen:
    """What a run left behind."""

    results: list[Any]
    structure: Any
    given: dict[str, Any]
    """Inputs and buffers after the run."""

    def tensors(self) -> dict[str, Tensor]:
        found = {f"result {i}": r for i, r in enumerate(self.results) if isinstance(r, Tensor)}
        return {**found, **{k: v for k, v in self.given.items() if isinstance(v, Tensor)}}


def run(module: nn.Module, args: tuple[Any, ...], seed: int) -> Seen:
    torch.manual_seed(seed)
    results, structure = pytree.tree_flatten(module(*args))
    given = {f"input {i}": a for i, a in enumerate(args)}
    given |= {f"buffer {k}": v for k, v in module.named_buffers(remove_duplicate=False)}
    given |= {f"parameter {k}": v for k, v in module.named_parameters()}
    return Seen(results, structure, given)


def differences(ours: Seen, eager: Seen) -> list[str]:
    """What is wrong with our run, in words."""
    if ours.structure != eager.structure:
        return [f"structure {ours.structure} instead of {eager.structure}"]
    found = []
    for name, want in eager.tensors().items():
        got = ours.tensors().get(name)
        if got is None:
            found.append(f"{name} is missing")
            continue
        for what in ("shape", "dtype"):
            a, b = getattr(got, what), getattr(want, what)
            if a != b:
                found.append(f"{name}: {what} {a} instead of {b}")
        # A buffer keeps its own strides, also where the module puts another tensor in its place.
        # Where there are no elements, strides address nothing.
        if got.stride() != want.stride() and want.numel() and not name.startswith("buffer"):
            found.append(f"{name}: strides {got.stride()} instead of {want.stride()}")
        if got.shape == want.shape and got.dtype == want.dtype and not _equal(got, want):
            found.append(f"{name}: values\n{got}\ninstead of\n{want}")
    return found


def _equal(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach(), b.detach()
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def aliasing(ours: Seen, eager: Seen) -> list[str]:
    """Pairs that share memory in one run and not in the other."""
    a, b = _shared(ours), _shared(eager)
    mine, theirs = ours.tensors(), eager.tensors()
    # Assigned in another layout than the buffer's, or an input: there the program copies.
    copied = {k for k, t in theirs.items() if k in mine and mine[k].stride() != t.stride()}
    given = {storage(t) for k, t in theirs.items() if k.startswith("input")}
    copied |= {k for k, t in theirs.items() if k.startswith("buffer") and storage(t) in given}
    a, b = ({p for p in pairs if copied.isdisjoint(p)} for pairs in (a, b))
    lost = [f"{x} and {y} no longer share memory" for x, y in sorted(b - a)]
    return lost + [f"{x} and {y} share memory" for x, y in sorted(a - b)]


def _shared(seen: Seen) -> set[tuple[str, str]]:
    named = [(k, storage(t)) for k, t in seen.tensors().items() if t.numel()]
    return {(k, n) for i, (k, s) in enumerate(named) for n, z in named[:i] if s == z}


def storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def exported(
    module: nn.Module, *args: Any, times: int = 2, keep: Sequence[OpOverload] = ()
) -> ExportedProgram:
    """Export a module; the program must do what the module does, also when it runs again on the
    state that the first run has left."""
    program = export(*deepcopy((module, args)), keep=keep)
    eager, ours = deepcopy(module), program.module()
    for again in range(times):
        want = run(eager, deepcopy(args), again)
        got = run(ours, deepcopy(args), again)
        assert not (wrong := differences(got, want) + aliasing(got, want)), "\n".join(wrong)
    return program
