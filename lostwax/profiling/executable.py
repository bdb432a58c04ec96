"""Profiles of `.pte` files: runs them traced in lostwax-run, or takes an ETDump from a device, and
leads each piece of time back to nodes by the ETRecord beside the file.

Must not know how profiles are shown.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch

from lostwax.errors import LoadError
from lostwax.profiling.profile import Profile, TimedPiece
from lostwax.pte.file.reader import read_file
from lostwax.pte.file.record import MethodRecord, read_inputs, read_record
from lostwax.pte.file.schema import DTYPES
from lostwax.pte.file.text import describe_step, find_tensors
from lostwax.pte.file.trace import Block, read_trace
from lostwax.pte.file.writers import Writers, tensor_bytes
from lostwax.pte.runtime import (
    Call,
    LoadedProgram,
    bind_lostwax_run,
    record_path,
    weights_path,
)

WARM = 2
"""Calls before those that count."""


def profile_executable(
    file: str | os.PathLike[str],
    inputs: Sequence[Any] | None = None,
    *,
    method: str = "forward",
    calls: int = 20,
    etdump: str | os.PathLike[str] | None = None,
    record: str | os.PathLike[str] | None = None,
) -> Profile:
    """How long each instruction of a `.pte` file takes, and what delegates do inside.

    It is run so many times with flat `inputs`: those of the ETRecord if none are given, else drawn
    ones. With `etdump` nothing is run: the file has what a device noted. Times of nodes, modules
    and lines need the ETRecord, beside the file or at `record`.
    """
    with open(file, "rb") as opened:
        data = opened.read()
    plans = {plan["name"]: plan for plan in read_file(data).program["execution_plan"] or ()}
    if method not in plans:
        raise LoadError(f"there is no method {method!r}; there are {sorted(plans)}")
    beside = record or (record_path(file) if os.path.exists(record_path(file)) else None)
    notes = (
        []
        if beside
        else [
            "no modules and lines: there is no ETRecord beside the file"
            "\n  instead: executable.save(path, etrecord=True), or export --etrecord"
        ]
    )
    known = read_record(beside).get(method) if beside else None
    if etdump is not None:
        blocks = _read_dump(etdump)
    else:
        if inputs is None and beside and method == "forward":
            inputs = read_inputs(beside)
        if inputs is None:
            inputs = _draw_inputs(plans[method])
            notes.append("the inputs are drawn: --input gives real ones")
        blocks = read_trace(_run_traced(data, file, inputs, method, calls + WARM))
    runs = [block for block in blocks if any(e.instruction >= 0 for e in _steps(block))]
    runs = runs[WARM:] if etdump is None else runs
    if not runs:
        raise LoadError(
            "the dump has no instructions\n  why: no method was called, or the runtime was built "
            "without its event tracer"
        )
    steps = _describe_steps(plans[method])
    whole = statistics.median(_whole(block) for block in runs)
    pieces = list(_list_pieces(runs, steps, known))
    rest = whole - sum(piece.seconds for piece in pieces)
    if rest > 0:
        pieces.append(TimedPiece("(between instructions)", rest))
    return Profile(os.path.basename(file), whole, len(runs), tuple(pieces), tuple(notes))


def _run_traced(data: bytes, file: Any, inputs: Sequence[Any], method: str, calls: int) -> bytes:
    try:
        package = import_module("lostwax_run")
    except ImportError as error:
        raise LoadError(
            "lostwax-run is not installed, which notes how long instructions take\n"
            "  instead: its wheel, which `pip wheel run/` builds in lostwax's repository; or the "
            "ETDump of another runtime: --etdump FILE"
        ) from error
    programs: list[Any] = []

    def load(data: bytes, weights: bytes | None, plans: Any) -> Callable[[str], Call]:
        programs.append(package.Program(data, weights, traced=True))
        return bind_lostwax_run(package, programs[0])

    weights = weights_path(file)
    beside = None
    if os.path.exists(weights):
        with open(weights, "rb") as opened:
            beside = opened.read()
    try:
        program = LoadedProgram(data, beside, load)
        for _ in range(calls):
            program.run(inputs, method=method)
    except package.RunError as error:
        raise LoadError(str(error)) from error
    dump: bytes = programs[0].take_trace().dump
    return dump


def _read_dump(file: str | os.PathLike[str]) -> list[Block]:
    try:
        return read_trace(file)
    except LoadError as error:
        raise LoadError(error.message, (*error.where, os.fspath(file))) from None


def _draw_inputs(plan: dict[str, Any]) -> list[Any]:
    """Inputs of the sizes that the file has: numbers around 0, zeros where they are integers."""
    dtypes = {number: dtype for dtype, number in DTYPES.items()}
    found: list[Any] = []
    for index in plan["inputs"] or ():
        value = plan["values"][index]["val"]
        if value[""] == "Tensor":
            dtype = dtypes[value["scalar_type"]]
            size = value["sizes"] or ()
            is_float = dtype.is_floating_point
            found.append(
                torch.randn(*size).to(dtype) if is_float else torch.zeros(size, dtype=dtype)
            )
        else:
            found.append(next((v for key, v in value.items() if key), None))
    return found


# ------------------------------------------------------------------------------------ instructions


class _CalledStep(NamedTuple):
    name: str
    bytes: int
    delegate: str


def _describe_steps(plan: dict[str, Any]) -> list[_CalledStep]:
    """What each instruction of a method calls, and how much it writes."""
    values = [v["val"] for v in plan["values"] or ()]
    writers, found = Writers(values), []
    for chain in plan["chains"] or ():
        for each in chain["instructions"] or ():
            step = each["instr_args"]
            name, _, _ = describe_step(step, plan)
            read, written = find_tensors(step, plan, writers)
            for index in read:
                writers.read(index)
            for index in written:
                writers.write(index)
            size = sum(tensor_bytes(values[index]) for index in written)
            is_delegate = step[""] == "DelegateCall"
            found.append(_CalledStep(name, size, name if is_delegate else ""))
    return found


def _steps(block: Block) -> Iterator[Any]:
    """The events of instructions: a kernel notes itself inside of one, and is not counted twice."""
    for event in block.events:
        if event.part or event.name in ("OPERATOR_CALL", "DELEGATE_CALL"):
            yield event


def _whole(block: Block) -> float:
    """The seconds of a whole call."""
    for event in block.events:
        if event.name == "Method::execute":
            return float(event.time) / 1e9
    return float(sum(event.time for event in _steps(block) if not event.part)) / 1e9


def _list_pieces(
    runs: Sequence[Block], steps: Sequence[_CalledStep], record: MethodRecord | None
) -> Iterator[TimedPiece]:
    times = _gather(runs)
    inside: dict[int, float] = defaultdict(float)
    for (at, part), seconds in times.items():
        if part:
            inside[at] += seconds
    for (at, part), seconds in sorted(times.items(), key=lambda item: item[0][0]):
        if at >= len(steps):
            raise LoadError(
                f"the dump speaks of instruction {at}, and the method has {len(steps)}\n"
                "  why: it is of another file, or of another method"
            )
        step, nodes = steps[at], tuple(record.find(at, part)) if record else ()
        if part:
            name = part.rpartition(" #")[0] or part
            yield TimedPiece(name, seconds, nodes, step.delegate, 0, f"i{at}")
        elif step.delegate:
            around = f"({step.delegate}, around)" if inside[at] else step.name
            left = max(seconds - inside[at], 0.0)
            yield TimedPiece(around, left, nodes, step.delegate, step.bytes, f"i{at}")
        else:
            yield TimedPiece(step.name, seconds, nodes, "", step.bytes, f"i{at}")


def _gather(runs: Sequence[Block]) -> Mapping[tuple[int, str], float]:
    """The median seconds of each instruction and of each part; what is repeated in a call adds
    up."""
    sums: list[dict[tuple[int, str], int]] = []
    for block in runs:
        sums.append(defaultdict(int))
        for event in _steps(block):
            sums[-1][event.instruction, event.part] += event.time
    keys = dict.fromkeys(key for each in sums for key in each)
    return {key: statistics.median(each.get(key, 0) for each in sums) / 1e9 for key in keys}
