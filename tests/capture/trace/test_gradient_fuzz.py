"""Random programs: the gradients of the exported program are the module's.

Of two kinds: those of `test_fuzz`, of views and writes, whose inputs are here copies of leaves that
require gradients; and those of `gradient_programs`, whose inputs are leaves, and of which results,
inputs and state afterwards, and what shares memory, are compared as well. What eager cannot
differentiate is left out.

    python -m tests.capture.trace.test_gradient_fuzz [count [first seed]]
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from lostwax.capture import export
from lostwax.errors import LostwaxError
from tests.capture.compare import storage
from tests.capture.programs import Program, generate
from tests.capture.trace.gradient_programs import GradientProgram, given, grown
from tests.whole import sampled

CHUNKS, SIZE = sampled(1, 4), 100


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class OfCopies(nn.Module):
    """The program on copies of its arguments: it may write to those."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*[a.clone() if _is_float(a) else a for a in args])


def leaves_of(args: tuple[Any, ...]) -> list[Any]:
    return [a.detach().clone().requires_grad_() if _is_float(a) else a for a in args]


def gradients(module: nn.Module, args: tuple[Any, ...]) -> list[Tensor]:
    """Of a weighted sum of the results; no gradient counts as zeros."""
    torch.manual_seed(0)
    leaves = leaves_of(args)
    results = [r for r in pytree.tree_leaves(module(*leaves)) if isinstance(r, Tensor)]
    sums = [
        (r.double() * torch.linspace(0.1, 1, r.numel(), dtype=torch.double).view(r.shape)).sum()
        for r in results
        if r.requires_grad and r.numel() and not r.is_complex()
    ]
    wanted = [*filter(_is_float, leaves), *module.parameters()]
    found = torch.autograd.grad(sum(sums), wanted, allow_unused=True) if sums and wanted else []
    given = [*found, *[None] * (len(wanted) - len(found))]
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, given, strict=True)]


def check(program: Program) -> str | None:
    """What is wrong, "" for nothing; None: not compared."""
    module, args = program.fresh()
    # A write to `.data` changes what eager has saved, and eager does not notice.
    saving = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)
    try:
        with saving:
            want = gradients(OfCopies(module), args)
    except Exception:
        return None
    module, args = program.fresh()
    try:
        exported = export(OfCopies(module), tuple(leaves_of(args)))
    except LostwaxError:
        return None
    try:
        got = gradients(exported.module(), program.fresh()[1])
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)
    except Exception as error:
        return f"seed {program.seed}\n{program.source}\n{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_gradients(chunk: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [check(generate(seed)) for seed in range(chunk * SIZE, (chunk + 1) * SIZE)]
    assert not [text for text in found if text]
    assert sum(text is not None for text in found) > SIZE / 3


# ------------------------------------------------------ programs that speak of gradients themselves


def left_behind(module: nn.Module, seed: int) -> dict[str, Any]:
    """What a run leaves behind, with the gradients of a weighted sum of all that has one."""
    leaves, args = given(seed)
    results = list(module(*args))
    values = [r.detach().clone() for r in results]
    after = [t.detach().clone() for t in (*args, *module.parameters(), *module.buffers())]
    sums = [
        (r * torch.linspace(0.1, 1, r.numel()).view(r.shape)).sum()
        for r in [*results, *args[1:]]
        if r.requires_grad
    ]
    wanted = [*leaves, *module.parameters()]
    found = torch.autograd.grad(sum(sums), wanted, allow_unused=True)
    shown = [storage(t) for t in [*results[: -module_state(module)], *args]]
    return {
        "results": values,
        "strides": [r.stride() for r in results],
        "after": after,
        "gradients": [
            torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)
        ],
        "shared": [[a == b for a in shown] for b in shown],
    }


def module_state(module: nn.Module) -> int:
    """How many of the last results are there to show inputs and state."""
    return 3 + len([*module.parameters(), *module.buffers()])


def check_grown(program: GradientProgram) -> str | None:
    """As `check`."""
    try:
        want = left_behind(program.fresh(), program.seed)
    except RuntimeError:
        return None
    try:
        exported = export(program.fresh(), tuple(given(program.seed)[1]))
    except LostwaxError:
        return None
    try:
        got = left_behind(exported.module(), program.seed)
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)
    except Exception as error:
        return f"seed {program.seed}\n{program.source}\n{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_programs_about_gradients(chunk: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [check_grown(grown(seed)) for seed in range(chunk * SIZE, (chunk + 1) * SIZE)]
    assert not [text for text in found if text]
    assert sum(text is not None for text in found) > SIZE * 3 / 4


if __name__ == "__main__":
    count, first = (int(a) for a in (*sys.argv[1:], *("1000", "0")[len(sys.argv) - 1 :]))
    warnings.simplefilter("ignore")
    seeds = range(first, first + count)
    told = [*[check(generate(seed)) for seed in seeds], *[check_grown(grown(s)) for s in seeds]]
    print("\n".join(text for text in told if text))
    wrong, compared = sum(bool(t) for t in told), sum(t is not None for t in told)
    print(f"{wrong} of {compared} programs have other gradients than eager")
