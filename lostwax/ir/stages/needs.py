"""What each stage of a program takes from the one before it, and which state it has.

Only tensors go from stage to stage, as `torch.distributed.pipelining` sends them: numbers are
computed again, from the sizes of tensors that a stage has, and so are views with gaps or overlaps.
What a later stage needs goes through those between. Must not write graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import getitem
from typing import Any

from torch.fx import Node

from lostwax.classes import SYMBOLIC
from lostwax.errors import SplitError
from lostwax.fake import FakeTensor
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.graph.effects import memory_base, memory_chain, must_stay, view_base
from lostwax.ir.graph.numbers import SeenNumbers
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.write_back import RESULTS, written_placeholders
from lostwax.ir.signature import InputKind, InputSpec, OutputSpec
from lostwax.ir.text import source_place, type_text
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from lostwax.sym import BoolExpr, Expr
from lostwax.sym.numbers.real import Real


class Needs:
    """Which node is of which stage, and what goes between them."""

    def __init__(self, program: ExportedProgram, starts: Sequence[Node]) -> None:
        self.program = program
        self.count = len(starts) + 1
        nodes = list(program.graph.nodes)
        self.places = {node: i for i, node in enumerate(nodes)}
        placeholders = program.graph.find_nodes(op="placeholder")
        specs = program.graph_signature.input_specs
        self.specs: dict[Node, InputSpec] = dict(zip(placeholders, specs, strict=True))
        self.stage = self._assign(nodes, starts)
        """The stage of each node; state has none."""
        self.held: list[dict[Node, None]] = [{} for _ in range(self.count)]
        """The state that each stage has."""
        self.taken: list[dict[Node, None]] = [{} for _ in range(self.count)]
        """The tensors that each stage takes from the one before."""
        self.results: list[list[tuple[OutputSpec, Any]]] = self._assign_results()
        self.numbers: list[dict[Node, None]] = [{} for _ in range(self.count)]
        """The numbers of earlier stages that each stage reads."""
        for node, at in self.stage.items():
            if node.op == "call_function" and not is_lazy(node):
                self._need_all(at, node.all_input_nodes)
        for at, results in enumerate(self.results):
            self._need_all(at, (value for _, value in results if isinstance(value, Node)))
        self._check_writes()
        self._pass_through()
        self._check_storage()

    def _assign(self, nodes: Sequence[Node], starts: Sequence[Node]) -> dict[Node, int]:
        found: dict[Node, int] = {}
        begins, at = set(starts), 0
        for node in nodes:
            at += node in begins
            if node.op == "placeholder":
                if self.specs[node].kind is InputKind.USER_INPUT:
                    found[node] = 0
            elif node.op == "call_function":
                source = node.args[0] if node.target is getitem else None
                found[node] = found.get(source, at) if isinstance(source, Node) else at
        return found

    # ---- what is written

    def _assign_results(self) -> list[list[tuple[OutputSpec, Any]]]:
        """The outputs of the program that each stage has: writes stand where their values are
        computed, results in the last."""
        found: list[list[tuple[OutputSpec, Any]]] = [[] for _ in range(self.count)]
        specs = self.program.graph_signature.output_specs
        values: Any = self.program.graph.output_node().args[0]
        for spec, value in zip(specs, values, strict=True):
            at = self.count - 1 if spec.kind in RESULTS else self.stage.get(value, 0)
            found[at].append((spec, value))
        return found

    def _check_writes(self) -> None:
        signature = self.program.graph_signature
        targets = written_placeholders(
            signature.input_specs, list(self.specs), signature.output_specs
        )
        values: Any = self.program.graph.output_node().args[0]
        for index, target in targets.items():
            at = self.stage.get(values[index], 0)
            if target in self.stage:
                name, others = target.name, [0] if at else []
            else:
                name = str(self.specs[target].target)
                others = [i for i, held in enumerate(self.held) if target in held and i != at]
                self.held[at][target] = None
            if others:
                raise SplitError.here(
                    f"{name!r} is read in stage {others[0]} and written in stage {at} "
                    f"({source_place(values[index])})",
                    why="a stage has inputs and state of its own, which no other can write",
                    instead="at=[...] with modules such that both are in one stage",
                )

    # ---- what is read

    def _check_storage(self) -> None:
        """Refuse what looks at memory around a tensor that arrives without it."""
        moved = {node for taken in self.taken for node in taken if memory_base(node) is not None}
        for node in self.stage:
            if has_trait(node.target, Trait.VIEWS_STORAGE):
                base = next((n for n in memory_chain(node)[1:] if n in moved), None)
                if base is not None and self.stage[node] > self.stage[base]:
                    raise SplitError.here(
                        f"{node.name!r} looks at the memory around {base.name!r}, which an earlier "
                        f"stage computes ({source_place(node)})",
                        why="a stage hands on tensors, without the memory that they are views of",
                        instead="at=[...] with modules such that both are in one stage",
                    )

    def _need_all(self, at: int, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._need(at, node)

    def _need(self, at: int, node: Node) -> None:
        """Note that a stage reads a value."""
        if node.op == "get_attr":
            return
        if node not in self.stage:
            self.held[at][node] = None
        elif is_number(node):
            if self._is_own(at, node):
                self._need_all(at, node.all_input_nodes)
            else:
                self.numbers[at][node] = None
        elif is_lazy(node):
            self._need_all(at, node.all_input_nodes)
        elif self.stage[node] != at:
            self._take(at, node)

    def _is_own(self, at: int, number: Node) -> bool:
        """Is it a number of this stage, not one that is read of a tensor of another?"""
        tensors = [n for n in number.all_input_nodes if not is_number(n)]
        return self.stage[number] == at and all(self.stage.get(n, at) == at for n in tensors)

    def _take(self, at: int, node: Node) -> None:
        value = node.meta.get("val")
        if not isinstance(value, FakeTensor):
            raise SplitError.here(
                f"stage {at} needs {node.name!r} of stage {self.stage[node]}, which is "
                f"{type_text(value) or 'no tensor'} ({source_place(node)})",
                why="a stage hands on tensors",
                instead="at=[...] with a module that runs before it, or after its last use",
            )
        self.taken[at][node] = None

    def _pass_through(self) -> None:
        """From the last stage on, let each take what it and those after it need."""
        for at in range(self.count - 1, 0, -1):
            later = self.taken[at + 1] if at + 1 < self.count else {}
            for node in later:
                if self.stage[node] < at:
                    self.taken[at][node] = None
            for number in self.numbers[at]:
                self._provide(at, number)
            self.taken[at] = dict.fromkeys(sorted(self.taken[at], key=self.places.__getitem__))
            if not self.taken[at]:
                raise SplitError.here(
                    f"stage {at} needs nothing of those before it",
                    why="stages are for what depends on each other",
                    instead="at=[...] with another module",
                )

    def _provide(self, at: int, number: Node) -> None:
        """See to it that a stage can compute a number of an earlier one."""
        if can_compute(number, self.taken[at]):
            return
        for source in self._find_sources(at, number):
            self._need(at, source)

    def _find_sources(self, at: int, number: Node) -> Iterator[Node]:
        """The tensors that a number is computed from in the end."""
        todo, seen = [number], {number}
        while todo:
            node = todo.pop()
            if not is_number(node):
                yield node
            elif node.op == "placeholder":
                yield self._find_tensor_with(at, node)
            else:
                todo += [n for n in node.all_input_nodes if n not in seen]
                seen.update(node.all_input_nodes)

    def _find_tensor_with(self, at: int, number: Node) -> Node:
        """An input of the user's that has the number as a size."""
        for node in self.specs:
            if node in self.stage and not is_number(node) and can_compute(number, [node]):
                return node
        raise SplitError.here(
            f"stage {at} needs the number {number.name!r}, an input of the program",
            why="a stage hands on tensors, and none has it as a size",
            instead=f"at=[...] with another module, or a program that takes {number.name} as a "
            "tensor",
        )


def is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), SYMBOLIC)


def is_lazy(node: Node) -> bool:
    """Is it computed in each stage that needs it? Numbers are, and views that cannot be sent as
    they are."""
    if node.op != "call_function":
        return False
    if is_number(node):
        return not must_stay(node)
    value = node.meta.get("val")
    is_dense = isinstance(value, FakeTensor) and value.fake_type.is_dense
    return not is_dense and view_base(node) is not None


def number_of(node: Node) -> Any:
    """What a number is, as an expression."""
    found = unwrap(node.meta["val"])
    return found if isinstance(found, (Expr, BoolExpr, Real)) else None


def can_compute(number: Node, tensors: Iterable[Node]) -> bool:
    """Does a number follow from the sizes of these tensors?"""
    tensors = list(tensors)
    seen = SeenNumbers(lambda target, args: number)
    for node in tensors:
        seen.note(node, node.meta["val"])
    wanted = number_of(number)
    return seen.is_known(wanted) or any(find_dim(wanted, n) is not None for n in tensors)


def find_dim(number: Any, tensor: Node) -> int | None:
    """The dimension of a tensor that has this very size."""
    value = tensor.meta.get("val")
    sizes = value.fake_type.size if isinstance(value, FakeTensor) else ()
    return next((d for d, size in enumerate(sizes) if number is not None and size == number), None)
