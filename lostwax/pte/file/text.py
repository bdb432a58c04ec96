"""A `.pte` file as a listing for people: methods, their memory, tensors and instructions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from lostwax.ir.text import dtype_text
from lostwax.pte.file.reader import File, read_file
from lostwax.pte.file.schema import DTYPES, EXTERNAL
from lostwax.pte.file.writers import Writers

_NAMES = {number: dtype_text(dtype) for dtype, number in DTYPES.items()}


def dump(file: str | os.PathLike[str] | bytes) -> str:
    """The listing of a file, given by its path or as bytes. Nothing of it is run."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            file = opened.read()
    return "\n".join(_lines(read_file(bytes(file))))


def _lines(file: File) -> Iterator[str]:
    program = file.program
    data = file.data_size
    yield f"{file.size:,} bytes, {data:,} of them data"
    for plan in program["execution_plan"] or ():
        yield ""
        yield from _plan_lines(plan)


def _plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    values = [v["val"] for v in plan["values"] or ()]
    inputs = ", ".join(_typed_text(values, i) for i in plan["inputs"] or ())
    yield f"def {_one_line(plan['name'])}({inputs}):  # arenas {plan['non_const_buffer_sizes']}"
    writers, shown = Writers(values), dict[int, list[int]]()
    for each in list_tensors(values, plan["inputs"] or ()):
        writers.write(each)
    for chain in plan["chains"] or ():
        for i, step in enumerate(chain["instructions"] or ()):
            read, written = find_tensors(step["instr_args"], plan, writers)
            yield from _view_lines(read, writers, shown)
            yield f"  {i:4} {_step_text(step['instr_args'], plan, values)}"
            for each in read:
                writers.read(each)
            for each in written:
                writers.write(each)
    yield from _view_lines(list_tensors(values, plan["outputs"] or ()), writers, shown)
    outputs = ", ".join(_typed_text(values, i) for i in plan["outputs"] or ())
    yield f"       return {outputs}"


def _view_lines(
    read: Iterable[int], writers: Writers, shown: dict[int, list[int]]
) -> Iterator[str]:
    """What is read now, and no instruction has written under this name; `shown` are those before,
    and whose views they were."""
    for index in read:
        sources = writers.find(index)
        if sources and index not in sources and shown.get(index) != sources:
            shown[index] = sources
            whose = ", ".join(f"t{each}" for each in sources)
            yield f"       {_typed_text(writers.values, index)} = view of {whose}"


def find_tensors(
    step: dict[str, Any], plan: dict[str, Any], writers: Writers
) -> tuple[list[int], list[int]]:
    """The tensors that a step reads, and those that it writes. A file does not say what a delegate
    writes: it is found out."""
    values, (_, called, results) = writers.values, describe_step(step, plan)
    tensors, written = [*list_tensors(values, called)], [*list_tensors(values, results)]
    if step[""] == "DelegateCall":
        written = [each for each in tensors if writers.may_be_written(each)]
    return [i for i in tensors if i not in written], written


def _step_text(step: dict[str, Any], plan: dict[str, Any], values: list[Any]) -> str:
    kind = step[""]
    if kind == "KernelCall":
        operator = plan["operators"][step["op_index"]]
        name = ".".join(filter(None, (operator["name"], operator["overload"])))
        args = [_short_text(values, i) for i in (step["args"] or [])[:-1]]
        result = _typed_text(values, step["args"][-1]) if step["args"] else ""
        return f"{result} = {_one_line(name)}({', '.join(args)})"
    if kind == "MoveCall":
        return f"{_short_text(values, step['move_to'])} = {_short_text(values, step['move_from'])}"
    if kind == "JumpFalseCall":
        condition = _short_text(values, step["cond_value_index"])
        return f"if not {condition}: go to {step['destination_instruction']}"
    if kind == "FreeCall":
        return f"free {_short_text(values, step['value_index'])}"
    delegate = plan["delegates"][step["delegate_index"]]
    listed = ", ".join(_short_text(values, i) for i in step["args"] or ())
    return f"{_one_line(delegate['id'] or '')}({listed})"


def describe_step(step: dict[str, Any], plan: dict[str, Any]) -> tuple[str, list[int], list[int]]:
    """What a step calls, the values that it is given, and of these the one that it writes; a file
    does not say which values a delegate writes."""
    kind, args = step[""], list(step.get("args") or ())
    if kind == "KernelCall":
        operator = plan["operators"][step["op_index"]]
        name = ".".join(filter(None, (operator["name"], operator["overload"])))
        return _one_line(name), args[:-1], args[-1:]
    if kind == "DelegateCall":
        return _one_line(plan["delegates"][step["delegate_index"]]["id"] or ""), args, []
    if kind == "MoveCall":
        return "move", [step["move_from"], step["move_to"]], [step["move_to"]]
    if kind == "JumpFalseCall":
        return f"jump if false to {step['destination_instruction']}", [step["cond_value_index"]], []
    return "free", [step["value_index"]], []


def describe_value(values: list[Any], index: int) -> str:
    """A value as an argument: a tensor by its number, anything else as it is."""
    return _short_text(values, index)


def describe_type(value: dict[str, Any]) -> str:
    """The dtype and the sizes of a tensor. Of one that varies a file has the greatest sizes, and
    does not say which of them are fixed: so the whole is `at most` that."""
    dtype = _NAMES.get(value["scalar_type"], f"dtype {value['scalar_type']}")
    sizes = ", ".join(map(str, value["sizes"] or ()))
    return f"{dtype}[{sizes}]{' at most' if value['shape_dynamism'] else ''}"


def list_tensors(values: list[Any], indices: Iterable[int]) -> Iterator[int]:
    """The tensors among some values, those of lists, too."""
    for index in indices:
        if values[index][""] == "Tensor":
            yield index
        elif values[index][""] in ("TensorList", "OptionalTensorList"):
            yield from _tensors(values, values[index])


def _typed_text(values: list[Any], index: int) -> str:
    value = values[index]
    if value[""] == "TensorList":
        return f"({', '.join(_typed_text(values, i) for i in _tensors(values, value))})"
    if value[""] != "Tensor":
        return _short_text(values, index)
    place = value["allocation_info"]
    if place is None:
        where = f"constant {value['data_buffer_idx']}" if value["data_buffer_idx"] else "given"
        if _is_beside(value):
            where = "beside"
    else:
        offset = place["memory_offset_low"] + (place["memory_offset_high"] << 32)
        where = f"arena {place['memory_id']}+{offset}"
    return f"t{index}: {describe_type(value)} @ {where}"


def _short_text(values: list[Any], index: int) -> str:
    value = values[index]
    kind = value[""]
    if kind == "Tensor":
        constant = value["data_buffer_idx"] if value["allocation_info"] is None else 0
        if _is_beside(value):
            return _one_line(value["extra_tensor_info"]["fully_qualified_name"] or "")
        return f"c{constant}" if constant else f"t{index}"
    if kind == "Null":
        return "None"
    if kind in ("TensorList", "OptionalTensorList", "IntList"):
        items = value["items"] or ()
        if kind == "IntList":
            return f"[{', '.join(_plain_text(values[i]) for i in items)}]"
        return f"[{', '.join('None' if i < 0 else f't{i}' for i in items)}]"
    return _plain_text(value)


def _is_beside(value: dict[str, Any]) -> bool:
    info = value["extra_tensor_info"]
    return info is not None and info["location"] == EXTERNAL


def _tensors(values: list[Any], value: dict[str, Any]) -> list[int]:
    return [i for i in value["items"] or () if i >= 0 and values[i][""] == "Tensor"]


def _plain_text(value: dict[str, Any]) -> str:
    """A number or text as Python writes it; control characters of a text are escaped."""
    return ", ".join(repr(v) for k, v in value.items() if k)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
