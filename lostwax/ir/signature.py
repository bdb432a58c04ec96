"""The signature of a graph: what its inputs are (parameters, buffers, constants, the user's
arguments) and what its outputs are (results, values that are written back).

Plain data with torch.export's names and values. Must not look at a graph: it only has names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, TypeGuard

from torch.fx import Node


class InputKind(Enum):
    """Where the value of a placeholder comes from."""

    USER_INPUT = 1
    PARAMETER = 2
    BUFFER = 3
    CONSTANT_TENSOR = 4
    CUSTOM_OBJ = 5
    TOKEN = 6


class OutputKind(Enum):
    """Where a value that the graph returns goes to."""

    USER_OUTPUT = 1
    LOSS_OUTPUT = 2
    BUFFER_MUTATION = 3
    PARAMETER_MUTATION = 4
    GRADIENT_TO_PARAMETER = 5
    GRADIENT_TO_USER_INPUT = 6
    USER_INPUT_MUTATION = 7
    TOKEN = 8


INPUT_ORDER = (
    InputKind.TOKEN,
    InputKind.PARAMETER,
    InputKind.BUFFER,
    InputKind.CONSTANT_TENSOR,
    InputKind.CUSTOM_OBJ,
    InputKind.USER_INPUT,
)
"""The order of the placeholders of a graph."""
STATE_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


# ------------------------------------------------------------------------------- kinds of argument


@dataclass
class _OfNode:
    """An argument that is the value of a node, and nothing more. (What a subclass adds is its name:
    it needs no methods of its own.)"""

    name: str


class TensorArgument(_OfNode):
    """A tensor."""


class SymIntArgument(_OfNode):
    """An int that is computed."""


class SymFloatArgument(_OfNode):
    """A float that is computed."""


class SymBoolArgument(_OfNode):
    """A bool that is computed."""


class TokenArgument(_OfNode):
    """Orders effects: it stands for what must have happened, not for a value."""


@dataclass
class CustomObjArgument:
    """A TorchBind object, or a Python object in its place; `fake_val` stands for it in capture."""

    name: str
    class_fqn: str
    fake_val: Any = None


@dataclass
class ConstantArgument:
    """A value that is baked into the program. As an output it has no node, and its name is ""."""

    name: str
    value: Any


def strip_class(value: Any) -> Any:
    """A constant as a graph has it: the number, or the text, in a member of an enumeration and its
    like. (fx writes graphs as text; what it would write of others is not always Python.)"""
    if type(value) is bool:
        return value
    return next((read(value) for kind, read in _PLAIN.items() if isinstance(value, kind)), value)


_PLAIN: dict[type, Any] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
}
"""How to read what is in an object of a subclass."""


def same_constant(a: Any, b: Any) -> bool:
    """Are two constants the same to a program? `1`, `1.0` and `True` are three different ones,
    `0.0` and `-0.0` two."""
    if type(a) is not type(b):
        return False
    return repr(a) == repr(b) if isinstance(a, (float, complex)) else bool(a == b)


ArgumentSpec: TypeAlias = (
    TensorArgument
    | SymIntArgument
    | SymFloatArgument
    | SymBoolArgument
    | ConstantArgument
    | CustomObjArgument
    | TokenArgument
)


def is_member(arg: ArgumentSpec) -> TypeGuard[ConstantArgument]:
    """Is it a constant that is more than a number or a text: a member of an enumeration?"""
    return isinstance(arg, ConstantArgument) and type(strip_class(arg.value)) is not type(arg.value)


@dataclass
class InputSpec:
    """One placeholder. `target` is the fully qualified name of the state it stands for;
    `persistent` says of a buffer whether it is in the `state_dict`."""

    kind: InputKind
    arg: ArgumentSpec
    target: str | None
    persistent: bool | None = None


class StateWrite(Enum):
    """How a module writes to a parameter or buffer."""

    INTO = "into"
    """Into the tensor that is there: `self.h.add_(1)`."""
    TENSOR = "tensor"
    """Another tensor takes its place: `self.h = self.h + 1`."""
    MEMORY = "memory"
    """The tensor gets another memory: `self.h.data = self.h + 1`."""


@dataclass
class OutputSpec:
    """One value of the output. `target` is what is written, or what the gradient is of: the name of
    a parameter or buffer, or of the placeholder of a user input.

    `write` says of a write to state how the original did it, which decides whether results share
    memory with the state. It is None in torch's own programs, which do not say, and is left out of
    `repr`, since torch has no such field.
    """

    kind: OutputKind
    arg: ArgumentSpec
    target: str | None
    write: StateWrite | None = field(default=None, repr=False)


@dataclass
class ExportBackwardSignature:
    """Says of a joint graph which outputs are gradients, and of what. `loss_output` is "" if they
    are gradients of all results, given the gradients of these."""

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str


_ON_USER_INPUTS = (OutputKind.USER_INPUT_MUTATION, OutputKind.GRADIENT_TO_USER_INPUT)


@dataclass
class ExportGraphSignature:
    """The inputs and outputs of a graph, in the order of its placeholders and of its output."""

    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]

    # ---- inputs

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(self.inputs_to_parameters.values())

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of all buffers, persistent or not."""
        return tuple(self.inputs_to_buffers.values())

    @property
    def non_persistent_buffers(self) -> tuple[str, ...]:
        """The names of the buffers that `state_dict` leaves out."""
        return tuple(
            s.target
            for s in self.input_specs
            if s.kind is InputKind.BUFFER and s.persistent is False and s.target is not None
        )

    @property
    def lifted_tensor_constants(self) -> tuple[str, ...]:
        """The names of tensors that the module reads, and that are no parameters or buffers."""
        return tuple(self.inputs_to_lifted_tensor_constants.values())

    @property
    def lifted_custom_objs(self) -> tuple[str, ...]:
        """The names of the custom objects that the module reads."""
        return tuple(self.inputs_to_lifted_custom_objs.values())

    @property
    def user_inputs(self) -> tuple[Any, ...]:
        """For each argument of the user the name of its placeholder; for a constant, its value."""
        found = (s.arg for s in self.input_specs if s.kind is InputKind.USER_INPUT)
        return tuple(_name_or_value(arg) for arg in found)

    @property
    def inputs_to_parameters(self) -> Mapping[str, str]:
        """The placeholder → the parameter."""
        return self._inputs(InputKind.PARAMETER)

    @property
    def inputs_to_buffers(self) -> Mapping[str, str]:
        """The placeholder → the buffer."""
        return self._inputs(InputKind.BUFFER)

    @property
    def inputs_to_lifted_tensor_constants(self) -> Mapping[str, str]:
        """The placeholder → the constant tensor."""
        return self._inputs(InputKind.CONSTANT_TENSOR)

    @property
    def inputs_to_lifted_custom_objs(self) -> Mapping[str, str]:
        """The placeholder → the custom object."""
        return self._inputs(InputKind.CUSTOM_OBJ)

    @property
    def input_tokens(self) -> tuple[str, ...]:
        """The placeholders of tokens, which order effects."""
        return tuple(s.arg.name for s in self.input_specs if s.kind is InputKind.TOKEN)

    # ---- outputs

    @property
    def user_outputs(self) -> tuple[Any, ...]:
        """For each result the name of its node; for a constant, its value."""
        kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        return tuple(_name_or_value(s.arg) for s in self.output_specs if s.kind in kinds)

    @property
    def buffers_to_mutate(self) -> Mapping[str, str]:
        """The node that holds the new value → the buffer it is written to."""
        return self._outputs(OutputKind.BUFFER_MUTATION)

    @property
    def parameters_to_mutate(self) -> Mapping[str, str]:
        """The node that holds the new value → the parameter it is written to."""
        return self._outputs(OutputKind.PARAMETER_MUTATION)

    @property
    def user_inputs_to_mutate(self) -> Mapping[str, str]:
        """The node that holds the new value → the placeholder of the input it is written to."""
        return self._outputs(OutputKind.USER_INPUT_MUTATION)

    @property
    def output_tokens(self) -> tuple[str, ...]:
        """The outputs that are tokens, which order effects."""
        return tuple(s.arg.name for s in self.output_specs if s.kind is OutputKind.TOKEN)

    @property
    def backward_signature(self) -> ExportBackwardSignature | None:
        """Which outputs are gradients; None if the graph computes none."""
        losses = [s.arg.name for s in self.output_specs if s.kind is OutputKind.LOSS_OUTPUT]
        parameters = self._outputs(OutputKind.GRADIENT_TO_PARAMETER)
        inputs = self._outputs(OutputKind.GRADIENT_TO_USER_INPUT)
        if not losses and not parameters and not inputs:
            return None
        return ExportBackwardSignature(parameters, inputs, losses[0] if losses else "")

    @property
    def assertion_dep_token(self) -> Mapping[int, str] | None:
        """Always None: assertions stay in the graph because they have effects, not by a token."""
        return None

    # ---- renaming

    def replace_all_uses(self, old: str, new: str) -> None:
        """Rename the node `old` to `new` wherever the signature names it."""
        specs: Iterable[InputSpec | OutputSpec] = (*self.input_specs, *self.output_specs)
        for spec in specs:
            if spec.arg.name == old and old:
                spec.arg.name = new
        for output in self.output_specs:
            if output.kind in _ON_USER_INPUTS and output.target == old:
                output.target = new

    def get_replace_hook(self, replace_inputs: bool = False) -> Callable[[Node, str, Node], None]:
        """Return a hook for `graph_module._set_replace_hook` that keeps the names of outputs up to
        date while a pass replaces nodes; with `replace_inputs` also those of placeholders."""

        def rename(old: Node, new: str, user: Node) -> None:
            if user.op == "output" or (replace_inputs and old.op == "placeholder"):
                self.replace_all_uses(old.name, new)

        return rename

    # ---- inside

    def _inputs(self, kind: InputKind) -> dict[str, str]:
        return {
            s.arg.name: s.target
            for s in self.input_specs
            if s.kind is kind and s.target is not None
        }

    def _outputs(self, kind: OutputKind) -> dict[str, str]:
        return {
            s.arg.name: s.target
            for s in self.output_specs
            if s.kind is kind and s.target is not None
        }

    def __str__(self) -> str:
        inputs = _lines("input_specs", self.input_specs)
        outputs = _lines("output_specs", self.output_specs)
        return f"ExportGraphSignature(\n{inputs}\n{outputs}\n)"


def list_members(signature: ExportGraphSignature) -> list[Any]:
    """The results that are members of an enumeration and their like."""
    return [spec.arg.value for spec in signature.output_specs if is_member(spec.arg)]


def _lines(name: str, specs: Iterable[InputSpec | OutputSpec]) -> str:
    listed = "".join(f"        {spec!r},\n" for spec in specs)
    return f"    {name}=[\n{listed}    ]," if listed else f"    {name}=[],"


def _name_or_value(arg: ArgumentSpec) -> Any:
    return arg.value if isinstance(arg, ConstantArgument) else arg.name
