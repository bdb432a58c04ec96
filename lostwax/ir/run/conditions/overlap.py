"""Checks that arguments share memory in the same way as at capture.

This matters to a program that writes to its inputs, since a write to one would show in another; and
to a program that was captured with one tensor as two arguments. Must not look at values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from lostwax import memory
from lostwax.classes import TENSORS
from lostwax.errors import InputValueError
from lostwax.fake.convert import type_of
from lostwax.fake.tensor import storage_key

Check = Callable[[Sequence[Any]], None]


def overlap_check(
    captured: Sequence[Any],
    paths: Sequence[str],
    written: set[int],
    same: Collection[tuple[Any, Any]] = (),
) -> Check | None:
    """Make a check of the leaves of a call; None if there is nothing to check. `written` are the
    indices of the inputs that the program writes to; `same` are pairs that must be one tensor,
    which is checked elsewhere."""
    tensors = [i for i, value in enumerate(captured) if isinstance(value, torch.Tensor)]
    pairs = [(i, j) for i in tensors for j in tensors if i < j]
    relations = [
        (i, j, _relation(captured[i], captured[j]))
        for i, j in pairs
        if (i in written or j in written or captured[i] is captured[j]) and (i, j) not in same
    ]
    if not relations and not written:
        return None

    def check(leaves: Sequence[Any]) -> None:
        for i in written:
            check_elements_apart(leaves[i], paths[i])
        for i, j, relation in relations:
            a, b = leaves[i], leaves[j]
            if relation is None and do_overlap(a, b):
                raise InputValueError(
                    f"{paths[i]} and {paths[j]} overlap in memory; the program writes to one of "
                    "them, and at capture they did not\n"
                    "  fix: pass a clone of one of them, or capture again with such arguments",
                    paths[j],
                )
            if relation is not None and a is not b and _relation(a, b) != relation:
                raise InputValueError(
                    f"{paths[i]} and {paths[j]} were one tensor, or shared memory, at capture, and "
                    "do not do so in the same way here\n"
                    "  fix: capture again, with a tensor of its own for each",
                    paths[j],
                )

    return check


def check_elements_apart(tensor: Any, path: str) -> None:
    """Refuse a tensor whose elements share memory, for a program that writes to it: a write to one
    element would show in others, and no program is captured with such a tensor. (If the program is
    being captured again, that capture refuses it.)"""
    if type(tensor) in TENSORS and not tensor.is_contiguous() and memory.repeats(type_of(tensor)):
        raise InputValueError(
            f"{path} has elements that share memory (expand(), as_strided()), and the program "
            "writes to it; at capture it had none\n"
            f"  fix: pass {path}.clone(memory_format=torch.contiguous_format)",
            path,
        )


StateCheck = Callable[[Sequence[Any], Sequence[Any]], None]


def state_check(
    names: Sequence[str],
    paths: Sequence[str],
    written: set[int],
    written_inputs: set[int],
    same: Collection[tuple[Any, Any]] = (),
) -> StateCheck | None:
    """Make a check that the state, by its names, and the leaves of a call share no written memory.
    `written` are the indices of the state that the program writes to; `same` are pairs of a name
    and an index that must be one tensor."""
    if not written and not written_inputs:
        return None

    def check(state: Sequence[Any], leaves: Sequence[Any]) -> None:
        for i in written:
            check_elements_apart(state[i], f"the module's own {names[i]}")
        looked_at = range(len(state)) if written_inputs else written
        keys = [(i, storage_key(state[i])) for i in looked_at if _is_tensor(state[i])]
        given: dict[int, list[int]] = {}
        for j, leaf in enumerate(leaves):
            if _is_tensor(leaf):
                given.setdefault(storage_key(leaf), []).append(j)
        for i, key in keys:
            for j in given.get(key, ()):
                is_written = i in written or j in written_inputs
                if is_written and (names[i], j) not in same and do_overlap(state[i], leaves[j]):
                    raise InputValueError(
                        f"{paths[j]} shares memory with the module's own {names[i]}, and the "
                        "program writes to one of them; at capture they were apart\n"
                        f"  fix: pass {paths[j]}.clone()",
                        paths[j],
                    )

    return check


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _relation(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...] | None:
    """How b lies in the memory of a; None if they do not overlap."""
    if not do_overlap(a, b):
        return None
    return b.storage_offset() - a.storage_offset(), a.stride(), b.stride()


def do_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is there memory that belongs to an element of both? Where sizes are not known, it may be."""
    return storage_key(a) == storage_key(b) and memory.overlap(type_of(a), type_of(b))
