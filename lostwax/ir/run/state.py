"""The state of a program's module: what the program writes is copied, all else shares its memory.

Several programs of one module may have one state (`lostwax.modules`): what one of them writes, the
others read. Must not know how a program is run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lostwax.fake.tensor import storage_key
from lostwax.identity import ByIdentity
from lostwax.ir.data import Program
from lostwax.ir.run.in_place import find_written_state
from lostwax.ir.signature import STATE_WRITES


def fill_state(module: nn.Module, program: Program, state: Mapping[str, Any]) -> dict[str, Any]:
    """Give the module the program's state, as deep as names go; return what is no parameter and no
    buffer."""
    for name in names_in_order(program):
        _register(module, name, state[name], persistent=name in program.state_dict)
    buffers = buffer_ids(program)
    constants = {}
    for name, value in program.constants.items():
        if id(value) in buffers:
            _register(module, name, state[name], persistent=False)
        else:
            constants[name] = state[name]
    return constants


def names_in_order(program: Program) -> list[str]:
    """The names of the state in the order of the original's `state_dict` and `buffers()`. A buffer
    that is not in the `state_dict` stands before the next buffer that is, or before the module that
    holds that one; and before its own other name, if the `state_dict` has that."""
    if program.state_dict.keys() >= set(program.graph_signature.buffers):
        return list(program.state_dict)
    places = ByIdentity[Any, str]()
    for name, tensor in program.state_dict.items():
        places.setdefault(tensor, name)
    order = {name: i for i, name in enumerate(program.state_dict)}
    before: dict[str | None, list[str]] = {}
    following: str | None = None
    for name in reversed(program.graph_signature.buffers):
        own = name if name in order else places.get(program.constants.get(name))
        if own is not None and (following is None or order[own] < order[following]):
            following = own
        if name not in order and name in program.constants:
            at = following and _first_beside(name, following, order)
            before.setdefault(at, []).append(name)
    waiting = {at: names[::-1] for at, names in before.items()}
    found = [n for name in order for n in (*waiting.get(name, ()), name)]
    return found + waiting.get(None, [])


def _first_beside(name: str, other: str, names: Iterable[str]) -> str:
    """The sibling of `name` (or of a module around it) that is or contains `other`: return the
    first of `names` in it."""
    parts, others = name.split("."), other.split(".")
    depth = next((i for i, (a, b) in enumerate(zip(parts, others, strict=False)) if a != b), 0)
    beside = ".".join(others[: depth + 1])
    return next(n for n in names if n == beside or n.startswith(f"{beside}."))


def buffer_ids(program: Program) -> set[int]:
    """The ids of the tensors that are buffers. A buffer may have further names, also some that are
    in no `state_dict`; those names have no inputs of their own."""
    held = {**program.constants, **program.state_dict}
    return {id(held[name]) for name in program.graph_signature.buffers if name in held}


def own_state(program: Program) -> dict[str, Any]:
    """Return the state for one module. What the program writes is copied, together with all that
    shares its memory; tied tensors stay tied."""
    return own_states([program], [""])[0]


def own_states(programs: Sequence[Program], paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the states for modules that share one: what one of the programs writes is copied once
    for all. A tensor that two programs have by one name (after the path at which each begins), in
    one place of memory, is one."""
    states = [{**program.constants, **program.state_dict} for program in programs]
    written = {key for program in programs for key in find_written(program)}
    copies: dict[int, Any] = {}
    made = ByIdentity[torch.Tensor, torch.Tensor]()
    firsts: dict[str, torch.Tensor] = {}
    pairs = zip(paths, states, strict=True)
    for path, name, value in ((p, *item) for p, state in pairs for item in state.items()):
        if not isinstance(value, torch.Tensor) or value in made:
            continue
        first = firsts.setdefault(f"{path}.{name}", value)
        if first is not value and is_same_memory(first, value):
            made[value] = made[first]
            continue
        own = copy.deepcopy(value.detach(), copies) if storage_key(value) in written else value
        made[value] = _make_parameter(own, value) if isinstance(value, nn.Parameter) else own
    return [
        {name: made[v] if isinstance(v, torch.Tensor) else v for name, v in state.items()}
        for state in states
    ]


def find_written(program: Program) -> set[int]:
    """Find the memories that the program writes."""
    given = {**program.constants, **program.state_dict}
    outputs = program.graph_signature.output_specs
    names = {s.target for s in outputs if s.kind in STATE_WRITES and s.target in given}
    names |= find_written_state(program)
    return {storage_key(given[name]) for name in names if name is not None}


def is_same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do both show the same elements, in the same way?"""
    if a is b:
        return True
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return False
    return storage_key(a) == storage_key(b) and _geometry(a) == _geometry(b)


def _geometry(t: torch.Tensor) -> tuple[Any, ...]:
    return t.dtype, t.storage_offset(), t.shape, t.stride(), isinstance(t, nn.Parameter)


def _make_parameter(own: torch.Tensor, given: nn.Parameter) -> nn.Parameter:
    """Make a parameter of our own: `.to()` writes to parameters, and must not write to the user's.
    Hooks that change the gradient of the user's parameter are registered here too."""
    with torch.inference_mode(given.is_inference()):
        made = nn.Parameter(own.detach(), requires_grad=given.requires_grad)
    hooks: Mapping[int, Any] = given._backward_hooks or {}
    for hook in hooks.values():
        made.register_hook(hook)
    return made


def _register(root: nn.Module, name: str, value: Any, persistent: bool) -> None:
    path, _, leaf = name.rpartition(".")
    hold_state(hold_module(root, path), leaf, value, persistent)


def hold_module(root: nn.Module, path: str) -> nn.Module:
    """Return the module at a path, made if there is none."""
    for part in path.split(".") if path else ():
        if part not in root._modules:
            root._modules[part] = nn.Module()
        root = root._modules[part]  # type: ignore[assignment]
    return root


def hold_state(module: nn.Module, name: str, value: Any, persistent: bool) -> None:
    """Give a module a parameter or a buffer. The name may be one that our own classes use, which
    `register_buffer` would refuse."""
    if isinstance(value, nn.Parameter):
        module._parameters[name] = value
        return
    module._buffers[name] = value
    if not persistent:
        module._non_persistent_buffers_set.add(name)
