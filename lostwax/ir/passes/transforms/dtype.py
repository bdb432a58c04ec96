"""Converts a program to another floating-point dtype: its state, the dtypes that its nodes name,
its values.

Must not leave a value of the old dtype in the program, except where it was asked to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from lostwax.errors import PassError
from lostwax.fake import FakeTensor
from lostwax.fake.storage import FakeStorage
from lostwax.fake.tensor import new_fake
from lostwax.ir.graph.control import describe_call
from lostwax.ir.graph.retype import PROVENANCE, evaluate_node, facts_inside
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass
from lostwax.ir.passes.transforms.state import convert_state
from lostwax.ir.signature import InputKind, OutputKind
from lostwax.ir.text import source_text
from lostwax.ops.registry import aten, has_trait, operator
from lostwax.ops.traits import Trait

Policy = Literal["keep", "convert"]


@dataclass(frozen=True)
class ConvertDtype(Pass):
    """Computes in another floating-point type: `ConvertDtype(torch.bfloat16)`.

    All values of type `of` become `to`: state, constants, what operators are told to make, and
    numbers that `to` cannot hold (they become its largest). `inputs` and `outputs` say whether
    callers see it: "keep" casts at the border, "convert" asks for inputs, and gives results, of the
    new type. Operators in `keep` are computed in the old type, between casts.
    """

    to: torch.dtype
    of: torch.dtype = torch.float32
    inputs: Policy = "keep"
    outputs: Policy = "keep"
    keep: tuple[OpOverload, ...] = ()

    requires = ("functional",)

    def edit(self, draft: Draft) -> None:
        for dtype in (self.to, self.of):
            if not dtype.is_floating_point:
                raise PassError(f"{dtype} is not a floating-point type")
        for option in ("inputs", "outputs"):
            policy = getattr(self, option)
            if policy not in ("keep", "convert"):
                raise PassError(f"{option} is 'keep' or 'convert', not {policy!r}")
        with draft.typing():
            _Conversion(draft, self).run()


class _Conversion:
    def __init__(self, draft: Draft, options: ConvertDtype) -> None:
        self.draft, self.options = draft, options
        self.graph = draft.graph
        self.of, self.to = options.of, options.to
        self.types = {n: _dtype(n) for m in draft.graph_modules() for n in m.graph.nodes}
        """The dtype of each value before the conversion."""
        self.casts: dict[tuple[Node, torch.dtype], Node] = {}
        self.converted: set[GraphModule] = set()
        """The sub-graphs that are converted already."""

    def run(self) -> None:
        self._convert_state()
        nodes = list(self.graph.nodes)
        for node in nodes:
            if node.op == "placeholder" and _dtype(node) is self.of:
                self._cast_input(node)
        for node in nodes:
            if node.op == "call_function":
                self._convert_call(node)
        self._cast_outputs()

    # ----------------------------------------------------------------------------------- state

    def _convert_state(self) -> None:
        draft, storages = self.draft, {}  # type: tuple[Draft, dict[FakeStorage, FakeStorage]]
        state = convert_state({**draft.constants, **draft.state_dict}, self._convert)
        draft.constants = {k: state[k] for k in draft.constants}
        draft.state_dict = {k: state[k] for k in draft.state_dict}
        for node, spec in draft.inputs.items():
            is_user = spec.kind is InputKind.USER_INPUT
            if _dtype(node) is self.of and (not is_user or self.options.inputs == "convert"):
                node.meta["val"] = self._convert_fake(node.meta["val"], storages)
        if self.options.inputs == "convert" and draft.example_inputs is not None:
            draft.example_inputs = pytree.tree_map_only(
                torch.Tensor, self._convert, draft.example_inputs
            )

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.to) if tensor.dtype is self.of else tensor

    def _convert_fake(
        self, fake: FakeTensor, storages: dict[FakeStorage, FakeStorage]
    ) -> FakeTensor:
        """Convert a fake. Values that shared memory share it again."""
        t = fake.fake_type.replace(dtype=self.to)
        storage = storages.setdefault(fake.fake_storage, FakeStorage(t))
        return new_fake(fake.fake_mode, t, storage, requires_grad=fake.requires_grad)

    # ----------------------------------------------------------------------------------- calls

    def _cast_input(self, node: Node) -> None:
        """Cast an input that keeps its dtype where it is read; if it is returned, it stays
        itself."""
        for user in list(node.users):
            if user.op != "output":
                user.replace_input_with(node, self._cast(node, self.to))

    def _convert_call(self, node: Node) -> None:
        if isinstance(node.target, HigherOrderOperator):
            self._convert_bodies(node)
            return
        if has_trait(node.target, Trait.READS_BITS) and self.of in (
            self.types[node],
            self._read_dtype(node),
        ):
            raise PassError(
                f"node {node.name!r} reads the bits of {self.of}, which {self.to} has not\n"
                f"    at {source_text(node)}"
            )
        if node.target in self.options.keep:
            for source in node.all_input_nodes:
                if _dtype(source) is self.to and self.types.get(source, self.of) is self.of:
                    node.replace_input_with(source, self._cast(source, self.of))
        else:
            node.args = map_aggregate(node.args, self._argument)
            node.kwargs = map_aggregate(node.kwargs, self._argument)
            if self.types[node] is self.of and _makes_default_type(node):
                node.kwargs = {**node.kwargs, "dtype": self.to}
        node.meta["val"] = self._evaluate(node)
        if _dtype(node) is self.of:  # a quotient of integers, or a kept operator
            self._cast(node, self.to, all_users=True)

    def _convert_bodies(self, node: Node) -> None:
        """Convert the sub-graphs of a call. Their inputs have the types of its operands; what they
        return is converted, as all that is computed."""
        call = describe_call(node)
        if call is None:
            raise PassError(
                f"node {node.name!r} is a call of {node.target}; conversion does not know what "
                f"its sub-graphs are given\n    at {source_text(node)}"
            )
        for body in call.bodies:
            module = body.find_module()
            if module is None or module in self.converted:
                continue
            self.converted.add(module)
            nodes = list(module.graph.nodes)
            for each, given in zip(nodes, body.given_values(), strict=False):
                each.meta["val"] = given
            with facts_inside(node, body, self.draft.mode):
                for each in nodes:
                    if each.op == "call_function":
                        self._convert_call(each)
        node.meta["val"] = self._evaluate(node)

    def _read_dtype(self, node: Node) -> torch.dtype | None:
        """The dtype, before the conversion, of the first tensor that a call reads."""
        source = node.all_input_nodes[0]
        return self.of if source in self.casts.values() else self.types.get(source)

    def _evaluate(self, node: Node) -> Any:
        try:
            return evaluate_node(node, self.draft.mode)
        except PassError as error:
            raise PassError(
                f"{error}\n  instead: compute it in {self.of}, keep=({_path(node)},)"
            ) from error

    def _argument(self, value: Any) -> Any:
        if value is self.of:
            return self.to
        if value.__class__ is float and math.isfinite(value):
            most = torch.finfo(self.to).max
            if abs(value) == torch.finfo(self.of).max:  # the largest number stays the largest
                return math.copysign(most, value)
            return max(-most, min(most, value))
        return value

    def _cast(self, node: Node, dtype: torch.dtype, all_users: bool = False) -> Node:
        """Return the value in another dtype; the cast is made once. With `all_users`, all users
        read the cast value."""
        found = self.casts.get((node, dtype)) or self._uncast(node, dtype)
        if found is None:
            users = list(node.users)
            graph = node.graph
            with graph.inserting_before(self._after(node)):
                found = graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
            found.meta.update({k: node.meta[k] for k in PROVENANCE if k in node.meta})
            found.meta["val"] = self._evaluate(found)
            self.casts[node, dtype] = found
            for user in users if all_users else ():
                user.replace_input_with(node, found)
        return found

    def _uncast(self, node: Node, dtype: torch.dtype) -> Node | None:
        """If the value is itself a cast from the wanted dtype, return what was cast: so nothing is
        lost."""
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or self.casts.get((source, self.to)) is not node:
            return None
        return source if _dtype(source) is dtype else None

    def _after(self, node: Node) -> Node:
        """The node before which a node that reads this one can be inserted."""
        after = node.next
        while after.op == "placeholder":
            after = after.next
        return after

    # --------------------------------------------------------------------------------- outputs

    def _cast_outputs(self) -> None:
        output = self.graph.output_node()
        values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
        wanted = {s.arg.name: _dtype(n) for n, s in self.draft.inputs.items()}
        wanted |= {s.target: _dtype(n) for n, s in self.draft.inputs.items() if s.target}
        for i, (value, spec) in enumerate(zip(values, self.draft.outputs, strict=True)):
            if not isinstance(value, Node) or _dtype(value) not in (self.of, self.to):
                continue
            if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
                dtype = self._result_dtype(value)
            else:
                dtype = wanted.get(spec.target or "")
            if dtype is not None and dtype is not _dtype(value):
                values[i] = self._cast(value, dtype)
        output.args = (tuple(values),)

    def _result_dtype(self, value: Node) -> torch.dtype | None:
        """The dtype in which a result is returned."""
        if self.options.outputs == "convert":
            return self.to if value.op != "placeholder" else None
        return self.types.get(value, self.of)


def _makes_default_type(node: Node) -> bool:
    """Is it a factory that takes a dtype, and was given none?"""
    if node.all_input_nodes or not isinstance(node.target, OpOverload):
        return False
    return "dtype" in operator(node.target).argument_names and "dtype" not in node.kwargs


def _path(node: Node) -> str:
    return f"torch.ops.{node.target}"


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.fake_type.dtype if isinstance(value, FakeTensor) else None
