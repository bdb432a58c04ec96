"""`lostwax.modules`: the modules of several programs with one state.

A module with several entry points (prefill and decode of a language model with a cache) is exported
once for each. What the one writes to a buffer, the other must read: so they hold their state
together, while `program.module()` copies what is written for each module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lostwax.errors import SharedStateError
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.run.module import ProgramModule, program_module
from lostwax.ir.run.state import is_same_memory, own_states


def modules(
    programs: Mapping[str, ExportedProgram], *, check_guards: bool = True
) -> dict[str, torch.nn.Module]:
    """Make a module for each of these programs of one module; they hold one state.

    What one of them writes to a buffer or a parameter, all of them read. The programs themselves,
    and modules made elsewhere, are not changed. The programs are those of one module, exported or
    loaded from one file; a parameter or a buffer that two programs have by one name must be the
    same tensor. `.to()` of one of the modules converts all.
    """
    if not isinstance(programs, Mapping):
        raise TypeError(
            f"modules takes programs by name, {{'prefill': …, 'decode': …}}, not a "
            f"{type(programs).__name__}"
        )
    for program in programs.values():
        check_is_program(program, "modules")
    _check_state(programs)
    made: dict[str, ProgramModule] = {}
    states = own_states([*programs.values()])
    for (name, program), state in zip(programs.items(), states, strict=True):
        beside = next(iter(made.values()), None)
        made[name] = program_module(program, check_guards, state, beside)
    for module in made.values():
        module._keep(_beside=tuple(made.values()))
    return {**made}


def _check_state(programs: Mapping[str, ExportedProgram]) -> None:
    firsts: dict[str, tuple[str, Any]] = {}
    for name, program in programs.items():
        for target, tensor in _find_state(program).items():
            first, other = firsts.setdefault(target, (name, tensor))
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
