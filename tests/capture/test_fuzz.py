"""Random programs: the exported program does what the module does.

Values, sizes, dtypes and strides of results; what is written to inputs and buffers; which results
share memory with inputs, state or each other. Each program runs twice, so that state carries over.
A refusal is no fault here, but is counted; its reasons are shown by

    python -m tests.capture.test_fuzz [count [first seed]]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from lostwax.capture import export
from lostwax.errors import LostwaxError
from tests.capture.programs import Program, generate, storage

CHUNKS, SIZE = 30, 100
"""3,000 programs in CI, in pieces that a run in parallel can share out."""


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
        if got.stride() != want.stride() and not name.startswith("buffer"):
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
    # Assigned in another layout than the buffer's: there the program copies.
    copied = {k for k, t in theirs.items() if k in mine and mine[k].stride() != t.stride()}
    a, b = ({p for p in pairs if copied.isdisjoint(p)} for pairs in (a, b))
    lost = [f"{x} and {y} no longer share memory" for x, y in sorted(b - a)]
    return lost + [f"{x} and {y} share memory" for x, y in sorted(a - b)]


def _shared(seen: Seen) -> set[tuple[str, str]]:
    named = [(k, storage(t)) for k, t in seen.tensors().items() if t.numel()]
    return {(k, n) for i, (k, s) in enumerate(named) for n, z in named[:i] if s == z}


@dataclass
class Outcome:
    """What became of one program."""

    program: Program
    wrong: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    refused: str = ""


def check(program: Program) -> Outcome:
    """Export a program and compare it with eager."""
    outcome = Outcome(program)
    module, args = program.fresh()
    before = _content(module, args)
    try:
        exported = export(module, args)
    except LostwaxError as error:
        outcome.refused = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return outcome
    except Exception as error:
        outcome.wrong.append(f"export raises {type(error).__name__}: {error}")
        return outcome
    if _content(module, args) != before:
        outcome.wrong.append("export changed the module or its inputs")
    eager, eager_args = program.fresh()
    ours, (_, our_args) = exported.module(), program.fresh()
    for again in range(2):
        try:
            want = run(eager, eager_args, again)
        except Exception:
            break  # a second run on what the first has left need not be possible
        try:
            got = run(ours, our_args, again)
        except Exception as error:
            outcome.wrong.append(f"run {again} raises {type(error).__name__}: {error}")
            break
        outcome.wrong += differences(got, want)
        outcome.aliases += aliasing(got, want)
        if _layout(eager) != _layout(ours):
            break  # the module now computes in other strides than the program
        _, eager_args = program.fresh()
        _, our_args = program.fresh()
    return outcome


def _layout(module: nn.Module) -> list[Any]:
    return [b.stride() for b in module.buffers()]


def _content(module: nn.Module, args: tuple[Any, ...]) -> Any:
    """All that export might have changed, comparable."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = [*state.items(), *((str(i), a) for i, a in enumerate(args) if isinstance(a, Tensor))]
    return [
        (name, id(t), t.shape, t.stride(), t.dtype, t.detach().flatten().tolist().__repr__())
        for name, t in tensors
    ], sorted(module.__dict__)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_programs(chunk: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = [check(generate(seed)) for seed in range(chunk * SIZE, (chunk + 1) * SIZE)]
    for outcome in outcomes:
        problems = outcome.wrong + outcome.aliases
        assert not problems, _told(outcome)
    assert sum(bool(o.refused) for o in outcomes) < SIZE / 5


def _told(outcome: Outcome) -> str:
    lines = [f"seed {outcome.program.seed}", outcome.program.source]
    return "\n".join([*lines, *outcome.wrong, *outcome.aliases])


def main(count: int = 1000, first: int = 0) -> int:
    warnings.simplefilter("ignore")
    refusals: Counter[str] = Counter()
    wrong = aliased = 0
    started = time.perf_counter()
    for seed in range(first, first + count):
        outcome = check(generate(seed))
        if outcome.refused:
            refusals[outcome.refused] += 1
        if outcome.wrong or outcome.aliases:
            print(_told(outcome), end="\n\n")
        wrong += bool(outcome.wrong)
        aliased += bool(outcome.aliases)
    for reason, times in refusals.most_common():
        print(f"{times:6d} {reason}")
    print(
        f"{count} programs in {time.perf_counter() - started:.1f} s: {wrong} wrong, "
        f"{aliased} with other aliasing, {refusals.total()} refused"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
