"""The same samples with every size a symbol: run once on fakes, compared at several sizes.

At the sample's own sizes the answer must be eager's. Then other sizes are tried that satisfy the
guards which the run recorded: eager runs on real tensors of those sizes, and the symbolic answer
evaluated there must be what eager gives. Eager raising at sizes that the guards admit is an
*unguarded* error. Sizes 0 and 1 are among those tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from lostwax.types import TensorType, contiguous_strides
from tests.ops.conformance import (
    Call,
    Comparison,
    Outcome,
    Run,
    Verdict,
    beyond,
    copied,
    eagerly,
    execute,
    on_fakes,
    refusal,
    text_of,
    value_error,
)
from tests.ops.ours import OurFakes, value

ORDINARY = 2  # other sizes tried that are all at least 2
SMALL = 2  # and of those with a 0 or a 1
TRIES = 24
TRUSTING = {
    "max_pool2d_with_indices_backward",
    "nn.functional.embedding_bag",
    "lu_unpack",
    "_segment_reduce.offsets",
    "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
}
"""Eager writes where the data say, unchecked: at other sizes that is outside of the tensor. (And
LAPACK's least squares end the process for some empty matrices.)"""

Binding = dict[Any, int]
Types = dict[int, TensorType]


def judge_symbolic(call: Call, fakes: OurFakes) -> Outcome:
    """Run the call with symbolic sizes; compare with eager at the sample's sizes and at others."""
    eager = eagerly(call)
    reason = beyond(eager) or ("eager raises" if eager.error is not None else "")
    if reason:
        return Outcome(Verdict.SKIPPED, reason)
    args, kwargs = copied((call.args, dict(call.kwargs)))
    call = replace(call, args=args, kwargs=kwargs)
    types: Types = {}
    try:
        got = on_fakes(call, fakes, lambda t: symbolized(t, fakes, types))
    except fakes.refusals as e:
        got = Run([], error=e)
    if got.error is not None:
        return refusal(eager, got.error, fakes)
    difference = Comparison(fakes, dict(fakes.symbols), exact=False).difference(eager, got)
    if difference:
        return Outcome(Verdict.WRONG, difference)
    if not fakes.symbols or call.operator in TRUSTING:
        return Outcome(Verdict.AGREES)
    return elsewhere(call, got, fakes, types)


def symbolized(t: Tensor, fakes: OurFakes, types: Types) -> Any:
    """The fake of an argument: symbolic if its strides follow from its sizes."""
    fake = fakes.symbolic(t) if is_packed(t) else fakes.fake(t)
    types.setdefault(id(t), fake.fake_type)
    return fake


def is_packed(t: Tensor) -> bool:
    """Contiguous from the start of its storage, but for the order of its dimensions."""
    if t.storage_offset() or 0 in t.shape:
        return t.storage_offset() == 0 and t.stride() == contiguous_strides(t.shape)
    step = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if stride != step:
            return False
        step *= size
    return True


def ends_the_process(call: Call, args: Any) -> bool:
    """A gather past the end: what eager raises of data would be passed over, but torch 2.11 for ARM
    dies of it, `torch.ones(1).gather(0, torch.tensor([4]))`, where one index serves a whole row."""
    if call.operator != "gather":
        return False
    source, dim, index = args[:3]
    size = source.shape[dim] if source.ndim else 1
    return bool(((index < 0) | (index >= size)).any())


def elsewhere(call: Call, got: Run, fakes: OurFakes, types: Types) -> Outcome:
    """Compare with eager at other sizes that the guards admit."""
    tried = 0
    for binding in other_sizes(fakes, random.Random(str(call))):
        args, kwargs = resized((call.args, dict(call.kwargs)), types, binding)
        if ends_the_process(call, args):
            continue
        eager = execute(call.function, args, kwargs)
        where = ", ".join(f"{s}={n}" for s, n in binding.items())
        if eager.error is not None:
            if value_error(eager.error):
                continue
            return Outcome(Verdict.UNGUARDED, f"at {where} eager raises {text_of(eager.error)}")
        tried += 1
        compare = Comparison(fakes, dict(binding), exact=False, aliasing=not is_small(binding))
        difference = compare.difference(eager, got)
        if difference:
            return Outcome(Verdict.WRONG, f"at {where}: {difference}")
    return Outcome(Verdict.AGREES if tried else Verdict.SPECIALISED, "; ".join(fakes.guards()))


# ------------------------------------------------------------------------------------- other sizes


def other_sizes(fakes: OurFakes, rng: random.Random) -> Iterator[Binding]:
    """Values of the symbols, other than the sample's, that satisfy every guard."""
    found: list[Binding] = [dict(fakes.symbols)]
    left = {False: ORDINARY, True: SMALL}
    for wish in wishes(fakes.symbols, rng):
        binding = repaired(wish, fakes)
        if binding in found or min(binding.values()) < 0 or not fakes.holds(binding):
            continue
        found.append(binding)
        small = is_small(binding)
        if left[small]:
            left[small] -= 1
            yield binding


def is_small(binding: Binding) -> bool:
    return any(n < 2 for n in binding.values())


def wishes(hints: Binding, rng: random.Random) -> Iterator[Binding]:
    """All sizes changed alike, then each at random."""
    for change in (lambda n: n + 1, lambda n: n + 2, lambda n: 1, lambda n: 0, lambda n: 2 * n):
        yield {s: change(n) for s, n in hints.items()}
    for _ in range(TRIES):
        yield {s: rng.choice((n, n, n + 1, n + 2, 2 * n, 3 * n, 1, 0)) for s, n in hints.items()}


def repaired(wish: Binding, fakes: OurFakes) -> Binding:
    """The wish with equalities among the guards made true where one symbol can be solved for."""
    binding = dict(wish)
    equalities = [p for g in fakes.env.guards for p in equalities_of(g.cond)]
    for _ in range(2 * len(equalities)):
        if sum(repair(poly, binding) for poly in equalities) == 0:
            break
    return binding


def equalities_of(cond: Any) -> list[Any]:
    """The polynomials that a condition says are zero."""
    if isinstance(cond, bool):
        return []
    if cond.kind == "and":
        return [p for part in cond.args for p in equalities_of(part)]
    return [cond.poly] if cond.kind == "eq" else []


def repair(poly: Any, binding: Binding) -> bool:
    """Solve a violated equality for the youngest symbol that stands alone in it."""
    n = value(poly, binding)
    if not n:
        return False
    alone = [m[0] for m, c in poly.terms.items() if len(m) == 1 and abs(c) == 1 and m[0] in binding]
    alone = [s for s in alone if sum(s in a.atoms for m in poly.terms for a in m) == 1]
    if not alone:
        return False
    symbol = max(alone, key=lambda s: s.id)
    binding[symbol] -= n * poly.terms[symbol,]
    return True


def resized(tree: Any, types: Types, binding: Binding) -> Any:
    """The arguments as real tensors of the sizes and strides that their types have there."""
    memo: dict[int, Tensor] = {}

    def resize(t: Tensor) -> Tensor:
        if id(t) not in memo:
            memo[id(t)] = resized_tensor(t, types[id(t)], binding)
        return memo[id(t)]

    return pytree.tree_map_only(Tensor, resize, tree)


def resized_tensor(t: Tensor, to: TensorType, binding: Binding) -> Tensor:
    """Values are the old ones repeated: indices stay indices, probabilities probabilities."""
    if not to.is_symbolic:
        return copied(t)  # type: ignore[no-any-return]
    size = [value(s, binding) for s in to.size]
    options = {"dtype": t.dtype, "device": t.device}
    new = torch.empty(size, **options)  # type: ignore[arg-type]
    if not to.is_contiguous:
        stride = [value(s, binding) for s in to.stride]
        new = torch.empty_strided(size, stride, **options)  # type: ignore[arg-type]
    old = t.reshape(-1)
    if old.numel() == 0:
        return new.fill_(1)
    repeated = torch.arange(new.numel(), device=t.device) % old.numel()
    return new.copy_(old[repeated].reshape(new.shape))
