"""What a program consists of: a graph with its signature, its state and its calling convention.

This is data alone, for all that reads programs: the rules, the runner, decompositions, the text.
What users do with a program is in `program.py`, which imports these. Must not know how it was made.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import TreeSpec

from lostwax.ir.declared import DeclaredArguments
from lostwax.ir.signature import ArgumentSpec, ExportGraphSignature
from lostwax.sym import Guard

Ref = int | str
"""Refers to a tensor of a program: an input of the user by its index, state by its name."""
Answer = bool | int | str
TAKEN_APART = "taken_apart"
"""In the `meta` of a program's graph module: the operators that it called once, and whose parts it
calls now."""


class Assumption(NamedTuple):
    """What tensors, or torch itself, have answered at capture, and must answer in each call. If it
    is about a value that is `computed` from several tensors, it holds if it holds for any of them;
    but with gradients switched off it does not hold."""

    what: str
    of: tuple[Ref, ...]
    answer: Answer
    where: str = ""
    """The line that asks; empty if no line does."""
    computed: bool = False


class Group(NamedTuple):
    """A process group of `torch.distributed`."""

    name: str
    size: int
    rank: int | None = None
    """Of the process for which the program is, if it is for one alone."""


class Mesh(NamedTuple):
    """A mesh of devices (`DeviceMesh`), as a process of it sees it."""

    device: str
    """The type of the devices, `cpu`."""
    shape: tuple[int, ...]
    names: tuple[str, ...]
    """Of its dimensions; empty if they have none."""
    groups: tuple[str, ...]
    """The process groups of this process, one for each dimension."""
    coordinate: tuple[int, ...]
    """Where in the mesh this process is."""
    ranks: tuple[int, ...]
    """Of all its processes, in order."""


class Layout(NamedTuple):
    """How a tensor is cut into shards, of which a program has one."""

    mesh: int
    """Which of the meshes."""
    placements: tuple[str, ...]
    """For each dimension of the mesh: `Shard(0)`, `Replicate()`, `Partial(sum)`."""
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    """Of the whole tensor. None if all shards are alike, so that one says it."""


SHARD = "_local_tensor"
"""The last part of the name of a parameter that is a shard; before it is that of the whole."""


class Sharding(NamedTuple):
    """Which tensors of a program are shards, and how these were cut: a table of placements."""

    meshes: tuple[Mesh, ...] = ()
    state: tuple[tuple[str, Layout], ...] = ()
    """By the name of the whole."""
    inputs: tuple[tuple[int, Layout], ...] = ()
    """By the index of the input."""
    results: tuple[tuple[int, Layout], ...] = ()
    """By the index of the result; gradients come last."""


class Settings(NamedTuple):
    """How torch is set at one time, in one thread; dtypes and devices by their names."""

    autocast: tuple[tuple[str, str], ...] = ()
    """The types of devices for which autocast is on, each with its dtype."""
    dtype: str = "float32"
    device: str = "cpu"
    exporting: bool = True
    """Was code told that it was being exported, if it asked?"""
    asked: tuple[str, ...] = ()
    """The lines that asked it."""
    groups: tuple[Group, ...] = ()
    """The process groups that the program counts on."""
    sharding: Sharding | None = None
    """Which tensors are shards."""


@dataclass
class ModuleCallSignature:
    """How one module was called: its arguments and results in the graph, and their structure.

    `forward_arg_names` names the arguments of `in_spec`, the positional ones first. `original` is
    what the original's code declares, if it is known: more arguments than were given, and defaults.
    """

    inputs: list[ArgumentSpec]
    outputs: list[ArgumentSpec]
    in_spec: TreeSpec
    out_spec: TreeSpec
    forward_arg_names: list[str] | None = None
    original: DeclaredArguments | inspect.Signature | None = field(
        default=None, compare=False, repr=False
    )

    def replace_all_uses_with(self, original_node: Node, new_node: Node) -> None:
        """Let the arguments and results that name a node name another one."""
        for arguments in (self.inputs, self.outputs):
            arguments[:] = [
                replace(a, name=new_node.name) if a.name == original_node.name else a
                for a in arguments
            ]

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of the original, if it is known."""
        found = self.original
        return found.signature() if isinstance(found, DeclaredArguments) else found


@dataclass
class ModuleCallEntry:
    """A module of the original, by name. The root's `fqn` is "", and it has a signature."""

    fqn: str
    signature: ModuleCallSignature | None = None


class CallSpec(NamedTuple):
    """The structure of a call, `(args, kwargs)`, and of its result; None if it is not known."""

    in_spec: TreeSpec | None
    out_spec: TreeSpec | None


@dataclass(repr=False, eq=False)
class Program:
    """A program as data. `ExportedProgram` adds what users do with it, and explains the fields."""

    graph_module: GraphModule
    graph_signature: ExportGraphSignature
    state_dict: dict[str, torch.Tensor]
    constants: dict[str, Any]
    range_constraints: Mapping[Any, Any]
    module_call_graph: list[ModuleCallEntry]
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    dialect: str = "ATEN"
    guards: Sequence[Guard] = field(default=())
    """Conditions on the sizes of inputs under which the program is right; checked on each call."""
    training: bool | None = None
    """Whether the module was in training mode when it was captured; None if that is not known."""
    settings: Settings | None = None
    """How torch was set around the capture; None if that is not known."""
    assumptions: tuple[Assumption, ...] | None = None
    """What the original's Python has asked of its tensors, and which of them were one, for each
    call to check; None if that is not known."""
    reads_views: bool = False
    """Whether views are only read: nothing was written through a view, or to its base. Then a copy
    can replace a view that an input's strides do not allow."""

    @property
    def graph(self) -> Graph:
        return self.graph_module.graph

    @property
    def tensor_constants(self) -> dict[str, Any]:
        return self.constants

    @property
    def call_spec(self) -> CallSpec:
        root = self.root_signature
        return CallSpec(None, None) if root is None else CallSpec(root.in_spec, root.out_spec)

    @property
    def root_signature(self) -> ModuleCallSignature | None:
        """How the program as a whole is called."""
        found = (e.signature for e in self.module_call_graph if e.fqn == "")
        return next(found, None)

    @property
    def named_by_calls(self) -> set[str]:
        """The names of the nodes that signatures of module calls name; these must stay, even if no
        other node reads them."""
        signatures = [e.signature for e in self.module_call_graph if e.signature is not None]
        return {arg.name for s in signatures for arg in (*s.inputs, *s.outputs)}

    # ---- state

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name in self.graph_signature.parameters:
            yield name, self.state_dict[name]  # type: ignore[misc]

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for _, parameter in self.named_parameters():
            yield parameter

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All buffers, persistent or not."""
        passing = set(self.graph_signature.non_persistent_buffers)
        for name in self.graph_signature.buffers:
            yield name, (self.constants if name in passing else self.state_dict)[name]

    def buffers(self) -> Iterator[torch.Tensor]:
        for _, buffer in self.named_buffers():
            yield buffer
