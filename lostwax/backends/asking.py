"""Asks partitioners and backends, which are other people's code, and looks at what they answer.

Must not know which backends there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph

from lostwax.backends.partition import Partitioner, PartitionResult, is_operator
from lostwax.backends.patterns import BackendOperator
from lostwax.backends.spec import Backend, DelegationSpec, Payload
from lostwax.errors import LostwaxError, LoweringError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import source_place


def require_partitioner(given: Any, method: str) -> Partitioner:
    """Refuse what is no partitioner, or has fields of another form."""
    if not isinstance(given, Partitioner):
        is_class = isinstance(given, type)
        what = f"the class {given.__name__}" if is_class else f"a {type(given).__name__}"
        raise LoweringError(
            f"to_backend takes partitioners; for {method!r} it is given {what}"
            "\n  instead: lostwax.backends.XnnpackPartitioner(), or "
            "an object of a class of your own, lostwax.backends.Partitioner"
        )
    fields = {
        "preserve_ops": (OpOverload, "torch.ops.mine.swish.default"),
        "operators": (BackendOperator, "swish"),
    }
    for name, (kind, example) in fields.items():
        found = getattr(given, name)
        listed = found if isinstance(found, (list, tuple)) else (found,)
        for each in listed:
            if not isinstance(found, (list, tuple)) or not isinstance(each, kind):
                raise LoweringError(
                    f"{type(given).__name__}.{name} has {each!r}, a {type(each).__name__}"
                    f"\n  instead: {kind.__name__}s in a tuple, ({example},)"
                )
    return given


def ask_partitioner(partitioner: Partitioner, program: ExportedProgram) -> PartitionResult:
    """What a partitioner says of a program, which it may not change."""
    name = f"{type(partitioner).__name__}.partition"
    before = _describe(program.graph)
    result = _ask(name, "", lambda: partitioner.partition(program))
    if not isinstance(result, PartitionResult):
        raise LoweringError(
            f"{name} returns a {type(result).__name__}\n  instead: PartitionResult(tags, specs)"
        )
    if _describe(program.graph) != before:
        raise LoweringError(
            f"{name} changes the program\n  why: it is to say which calls a backend takes, of the "
            "program that it is given\n  instead: a pass before, edge.transform([...])"
        )
    return result


def _describe(graph: Graph) -> list[Any]:
    return [(n, n.op, n.target, n.args, n.kwargs) for n in graph.nodes]


def ask_backend(program: ExportedProgram, spec: DelegationSpec) -> tuple[Backend, Payload]:
    """The backend of a part, and what it makes of it."""
    backend = spec.backend
    if not isinstance(backend, Backend):
        raise LoweringError(
            f"the backend of a DelegationSpec is {backend!r}\n  instead: an object of a class of "
            "lostwax.backends.Backend"
        )
    name: Any = backend.backend_id
    if not isinstance(name, str):
        raise LoweringError(
            f"the backend_id of {type(backend).__name__} is {name!r}\n  instead: the name by which "
            "the runtime finds the backend"
        )
    places = (source_place(n) for n in program.graph.nodes if is_operator(n))
    place = next(filter(None, places), "")
    made = _ask(
        f"{name}.preprocess", place, lambda: backend.preprocess(program, spec.compile_specs)
    )
    payload = made if isinstance(made, Payload) else Payload(made)
    _require_form(name, payload)
    return backend, payload


def _require_form(name: str, payload: Payload) -> None:
    named: Any = payload.named_data
    if not isinstance(named, Mapping) or not all(isinstance(key, str) for key in named):
        raise LoweringError(
            f"{name}.preprocess returns named_data that is {named!r}"
            "\n  instead: {name: bytes or tensor}"
        )
    events: Any = payload.events
    if not isinstance(events, Mapping) or not all(
        isinstance(key, (int, str)) and isinstance(each, (list, tuple))
        for key, each in events.items()
    ):
        raise LoweringError(
            f"{name}.preprocess returns events that are {events!r}"
            "\n  instead: {number or name: (names of nodes)}"
        )
    raw = (bytes, bytearray, memoryview)
    for key, data in {"the payload": payload.data, **named}.items():
        kinds = raw if data is payload.data else (*raw, torch.Tensor)
        if not isinstance(data, kinds):
            raise LoweringError(
                f"{name}.preprocess returns {key} as a {type(data).__name__}"
                "\n  instead: bytes, or lostwax.backends.Payload(bytes, named_data)"
            )


def _ask(name: str, place: str, ask: Callable[[], Any]) -> Any:
    """Ask, and tell of an error in the other's code whose it is."""
    try:
        return ask()
    except LostwaxError:
        raise
    except Exception as error:
        raise LoweringError.at(
            f"{name} fails: {type(error).__name__}: {error}",
            place,
            why="the error is one of its own; it is the cause of this one",
            instead="mend it there",
        ) from error
