"""Calls of functions with a cache (`functools.lru_cache`) that are given numbers of data.

Which result the cache has is known only when the program runs, so the program computes it. That is
the same where the function computes from its arguments alone, and nobody writes to what it returns.
Must not record regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.capture import threads
from lostwax.capture.flow.truths import is_open_number
from lostwax.capture.heap.cached import CACHED
from lostwax.capture.heap.moment import Moment
from lostwax.errors import CaptureError
from lostwax.identity import Seen
from lostwax.ir.graph.effects import has_effect
from lostwax.ir.trace.log import InnerGraph, Step, values_of
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)


def is_cached(function: Any) -> bool:
    return type(function) is CACHED


def call_cached(function: Any, /, *args: Any, **options: Any) -> Any:
    """What a function with a cache gives."""
    if not any(is_open_number(each) for each in (*args, *options.values())):
        return function(*args, **options)
    tracer = threads.running[-1]
    steps, moment = tracer.region.steps, Moment(tracer.python.reachable)
    begin = len(steps)
    name = getattr(function, "__name__", "a function")
    tracer.python.computed.note(function, (*args, *options.values()))
    result = function.__wrapped__(*args, **options)
    if moment.find_change() is not None or not _are_alone(steps[begin:]):
        raise CaptureError.here(
            f"{name} has a cache, and is given a number that data decide",
            why="it reads or changes something beside its arguments, so that it matters whether it "
            "is called or the cache has its result",
            instead=f"call it without the cache, {name}.__wrapped__(n), or give it all that it "
            "reads",
        )
    for each in pytree.tree_leaves(result):
        if isinstance(each, torch.Tensor):
            root = tracer.adopt(each).tracked.root
            tracer.sharing.maybe_shared[root] = f"the cache of {name}"
    return result


def _are_alone(steps: Sequence[Step]) -> bool:
    """Do these steps read nothing but numbers, draw nothing and have no effects?"""
    known = Seen()
    for step in _walk(steps):
        known.add(step)
        for graph in _list_graphs(step):
            known.update(graph.inputs)
    for step in _walk(steps):
        for value in values_of([step.args, *step.kwargs.values()]):
            if value.step not in known and value not in known:
                return False
        tags = getattr(step.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags or has_effect(step.target):
            return False
    return True


def _walk(steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        for graph in _list_graphs(step):
            yield from _walk(graph.region.steps)


def _list_graphs(step: Step) -> list[InnerGraph]:
    return [each for each in step.args if isinstance(each, InnerGraph)]
