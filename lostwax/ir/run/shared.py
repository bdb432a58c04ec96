"""`lostwax.modules`: the modules of several programs with one state.

A module with several entry points (prefill and decode of a language model with a cache) is exported
once for each. What the one writes to a buffer, the other must read: so they hold their state
together, while `program.module()` copies what is written for each module. If one was exported from
a part of the module (`model.decoder`), or from a function that calls it, its names are shorter or
longer than the others': the state is one tree of modules, in which each program has its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from lostwax.errors import SharedStateError
from lostwax.fake.tensor import storage_key
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.run.module import ProgramModule, program_module
from lostwax.ir.run.state import find_written, hold_module, is_same_memory, own_states


def modules(
    programs: Mapping[str, ExportedProgram], *, check_guards: bool = True
) -> dict[str, torch.nn.Module]:
    """Make a module for each of these programs of one module; they hold one state.

    What one of them writes to a buffer or a parameter, all of them read. The programs themselves,
    and modules made elsewhere, are not changed. The programs are those of one module, exported or
    loaded from one file; a parameter or a buffer that two programs have by one name must be the
    same tensor. A program may be that of a part, `export(model.decoder, …)`, if it shares what is
    written. `.to()` of one of the modules converts all. With `check_guards=False` calls are not
    checked against what the programs were captured for.
    """
    if not isinstance(programs, Mapping):
        raise TypeError(
            f"modules takes programs by name, {{'prefill': …, 'decode': …}}, not a "
            f"{type(programs).__name__}"
        )
    for program in programs.values():
        check_is_program(program, "modules")
    paths = _find_places(programs)
    _check_state(programs, paths)
    tree = nn.Module()
    made: dict[str, ProgramModule] = {}
    states = own_states([*programs.values()], [*paths.values()])
    for (name, program), state in zip(programs.items(), states, strict=True):
        holder = hold_module(tree, paths[name])
        made[name] = program_module(program, check_guards, state, holder)
    for module in made.values():
        module._keep(_beside=tuple(made.values()), _tree=tree)
    return {**made}


def _find_places(programs: Mapping[str, ExportedProgram]) -> dict[str, str]:
    """Find for each program the path, in one tree of modules, of the module whose names it has, so
    that what is written has one name in all of them."""
    written = {memory for program in programs.values() for memory in find_written(program)}
    paths: dict[str, str] = {}
    known: dict[str, Tensor] = {}
    for name, program in programs.items():
        state = {n: t for n, t in _find_state(program).items() if storage_key(t) in written}
        above, path = _find_offset(known, state) or _refuse_names(programs, name)
        paths = {each: _join(above, before) for each, before in paths.items()} | {name: path}
        known = {_join(above, n): t for n, t in known.items()}
        known |= {_join(path, n): t for n, t in state.items()}
    return paths


def _find_offset(
    known: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> tuple[str, str] | None:
    """Find what to put before all names that are known, and what before those of another program,
    so that tensors that both have are called alike; None if nothing does it."""
    near: dict[int, list[str]] = {}
    for name, tensor in known.items():
        near.setdefault(storage_key(tensor), []).append(name)
    pairs = [
        (other, name)
        for name, tensor in state.items()
        for other in near.get(storage_key(tensor), ())
        if is_same_memory(known[other], tensor)
    ]
    offsets = [("", ""), *(_compare_names(*pair) for pair in pairs)]
    for above, path in dict.fromkeys(offsets):
        names = {(_join(above, a), _join(path, b)) for a, b in pairs}
        if all((a, a) in names and (b, b) in names for a, b in names):
            return above, path
    return None


def _compare_names(known: str, name: str) -> tuple[str, str]:
    if known.endswith(f".{name}"):
        return "", known.removesuffix(f".{name}")
    return name.removesuffix(f".{known}") if name.endswith(f".{known}") else "", ""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _refuse_names(programs: Mapping[str, ExportedProgram], name: str) -> NoReturn:
    own = _find_state(programs[name])
    first, theirs, ours = next(
        (each, a, b)
        for each, program in programs.items()
        for a, t in _find_state(program).items()
        for b, u in own.items()
        if each != name and a != b and is_same_memory(t, u)
    )
    raise SharedStateError(
        f"the programs {first!r} and {name!r} have one tensor by two names, {theirs!r} and "
        f"{ours!r}, and it is written.\n"
        "  why: modules share what has one name, and no place in one module gives both their names"
        "\n  instead: export both from one module object, from methods of it where it is not its "
        "forward"
    )


def _check_state(programs: Mapping[str, ExportedProgram], paths: Mapping[str, str]) -> None:
    firsts: dict[str, tuple[str, Any]] = {}
    for name, program in programs.items():
        for target, tensor in _find_state(program).items():
            first, other = firsts.setdefault(_join(paths[name], target), (name, tensor))
            if not is_same_memory(other, tensor):
                raise SharedStateError(
                    f"the programs {first!r} and {name!r} both have {target!r}, and it is not one "
                    "tensor.\n"
                    "  why: modules share what they have by one name, and cannot tell which of two "
                    "it is\n"
                    "  instead: export both from one module object, or save both in one file, "
                    f"lostwax.save({{{first!r}: …, {name!r}: …}}, path), and load that; programs "
                    "that have nothing in common need not share: program.module()"
                )


def _find_state(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Parameters and buffers, by name."""
    buffers = {
        name: program.constants[name]
        for name in program.graph_signature.buffers
        if name in program.constants
    }
    return {**program.state_dict, **buffers}
