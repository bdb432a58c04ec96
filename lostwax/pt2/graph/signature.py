"""The signature of a program, and how it and its modules were called, read from a `.pt2`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lostwax.errors import LoadError
from lostwax.ir.data import ModuleCallEntry, ModuleCallSignature
from lostwax.ir.signature import (
    STATE_WRITES,
    ArgumentSpec,
    ConstantArgument,
    CustomObjArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    StateWrite,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    TokenArgument,
)
from lostwax.pt2.container.weights import read_device
from lostwax.pt2.graph.treespec import tree_of
from lostwax.pt2.schema import DTYPES, LAYOUTS, MEMORY_FORMATS

Json = Mapping[str, Any]

_TABLES: dict[str, Mapping[int, Any]] = {
    "as_scalar_type": DTYPES,
    "as_layout": LAYOUTS,
    "as_memory_format": MEMORY_FORMATS,
}
_INFINITE = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def read_signature(given: Json, writes: Sequence[str | None] | None = None) -> ExportGraphSignature:
    """`writes`: of each output, how it is written to state; only files of our own have it."""
    outputs = [_output(spec) for spec in given["output_specs"]]
    if writes is not None:
        for spec, write in zip(outputs, writes, strict=True):
            if spec.kind in STATE_WRITES and write is not None:
                spec.write = StateWrite(write)
    return ExportGraphSignature([_input(spec) for spec in given["input_specs"]], outputs)


def read_kind(given: Json) -> tuple[str, Any]:
    if len(given) != 1:
        raise LoadError("a field that is one of several kinds has not exactly one")
    ((kind, value),) = given.items()
    return kind, value


def read_name(value: Any) -> str:
    if not isinstance(value, str):
        raise LoadError(f"{value!r} is not a name")
    return value


_STATE = {
    "parameter": (InputKind.PARAMETER, "parameter_name"),
    "buffer": (InputKind.BUFFER, "buffer_name"),
    "tensor_constant": (InputKind.CONSTANT_TENSOR, "tensor_constant_name"),
}


def _input(given: Json) -> InputSpec:
    kind, spec = read_kind(given)
    if kind in _STATE:
        of, target = _STATE[kind]
        persistent = spec["persistent"] is True if kind == "buffer" else None
        argument = TensorArgument(read_name(spec["arg"]["name"]))
        return InputSpec(of, argument, read_name(spec[target]), persistent)
    if kind == "user_input":
        return InputSpec(InputKind.USER_INPUT, read_argument(spec["arg"]), None)
    if kind == "constant_input":
        value = constant(spec["value"])
        return InputSpec(
            InputKind.USER_INPUT, ConstantArgument(read_name(spec["name"]), value), None
        )
    if kind == "token":
        return InputSpec(InputKind.TOKEN, TokenArgument(read_name(spec["arg"]["name"])), None)
    if kind == "custom_obj":
        raise LoadError(
            f"the input {spec['arg']['name']!r} is an object of the class "
            f"{spec['arg'].get('class_fqn')!r}: such objects are pickled, and never read"
        )
    raise LoadError(f"{kind!r} is no kind of input")


_WRITES = {
    "buffer_mutation": (OutputKind.BUFFER_MUTATION, "buffer_name"),
    "parameter_mutation": (OutputKind.PARAMETER_MUTATION, "parameter_name"),
    "user_input_mutation": (OutputKind.USER_INPUT_MUTATION, "user_input_name"),
    "gradient_to_parameter": (OutputKind.GRADIENT_TO_PARAMETER, "parameter_name"),
    "gradient_to_user_input": (OutputKind.GRADIENT_TO_USER_INPUT, "user_input_name"),
}


def _output(given: Json) -> OutputSpec:
    kind, spec = read_kind(given)
    if kind == "user_output":
        return OutputSpec(OutputKind.USER_OUTPUT, read_argument(spec["arg"]), None)
    name = read_name(spec["arg"]["name"])
    if kind in _WRITES:
        of, target = _WRITES[kind]
        return OutputSpec(of, TensorArgument(name), read_name(spec[target]))
    if kind == "loss_output":
        return OutputSpec(OutputKind.LOSS_OUTPUT, TensorArgument(name), None)
    if kind == "token":
        return OutputSpec(OutputKind.TOKEN, TokenArgument(name), None)
    raise LoadError(f"{kind!r} is no kind of output")


_NUMBERS: dict[str, tuple[Any, str]] = {
    "as_sym_int": (SymIntArgument, "as_int"),
    "as_sym_float": (SymFloatArgument, "as_float"),
    "as_sym_bool": (SymBoolArgument, "as_bool"),
}


def read_argument(given: Json) -> ArgumentSpec:
    kind, value = read_kind(given)
    if kind == "as_tensor":
        return TensorArgument(read_name(value["name"]))
    if kind in _NUMBERS:
        cls, plain = _NUMBERS[kind]
        if "as_name" in value:
            return cls(read_name(value["as_name"]))  # type: ignore[no-any-return]
        return ConstantArgument("", value[plain])
    if kind == "as_custom_obj":
        return CustomObjArgument(read_name(value["name"]), read_name(value["class_fqn"]))
    return ConstantArgument("", constant(given))


def constant(given: Json) -> Any:
    """A value that is baked in."""
    kind, value = read_kind(given)
    kinds = {"as_int": int, "as_bool": bool, "as_string": str, "as_float": float}
    if kind == "as_none":
        return None
    if kind == "as_float" and value.__class__ in (int, str):
        value = _INFINITE.get(value) if isinstance(value, str) else float(value)
    if kind in _TABLES and value.__class__ is int and value in _TABLES[kind]:
        return _TABLES[kind][value]
    if kind == "as_device":
        return read_device(value)
    if kind == "as_complex":
        return complex(constant({"as_float": value["real"]}), constant({"as_float": value["imag"]}))
    if kind not in kinds or value.__class__ is not kinds[kind]:
        raise LoadError(f"{str(given)[:100]} is no constant")
    return value


_RESULTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)


def read_call_graph(given: Any, signature: ExportGraphSignature) -> list[ModuleCallEntry]:
    return [_entry(entry, signature) for entry in given]


def _entry(given: Json, signature: ExportGraphSignature) -> ModuleCallEntry:
    fqn, call = read_name(given["fqn"]), given["signature"]
    if call is None:
        return ModuleCallEntry(fqn)
    names = call.get("forward_arg_names")
    made = ModuleCallSignature(
        [read_argument(a) for a in call["inputs"]],
        [read_argument(a) for a in call["outputs"]],
        tree_of(call["in_spec"]),
        tree_of(call["out_spec"]),
        None if names is None else [read_name(name) for name in names],
    )
    return complete_root(ModuleCallEntry(fqn, made), signature)


def complete_root(entry: ModuleCallEntry, signature: ExportGraphSignature) -> ModuleCallEntry:
    """Say of the call of the root what it takes and gives: torch leaves out what the signature
    says."""
    call = entry.signature
    if call is not None and entry.fqn == "" and not call.inputs and not call.outputs:
        users = [s.arg for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
        results = [s.arg for s in signature.output_specs if s.kind in _RESULTS]
        call.inputs, call.outputs = users, results
    return entry
