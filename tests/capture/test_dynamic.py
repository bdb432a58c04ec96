"""Programs hold for all sizes: whatever the example's, the program is the same, and it does what
the module does at 0, 1, 2, a prime and a large size.

Also for what specialises elsewhere (`dynamic_models.py`), within a bounded number of steps of the
engine.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from lostwax import Dim, export
from lostwax.fake import FakeTensor
from lostwax.ir.program import ExportedProgram
from tests.capture.compare import differences, run
from tests.capture.dynamic_models import CASES, Case


def declared(dynamic: tuple[Any, ...]) -> tuple[Any, ...]:
    """Names as Dims; `4*height` is a multiple of one."""

    def dim(name: str) -> Any:
        factor, _, root = name.rpartition("*")
        return int(factor) * Dim(root) if factor else Dim(root)

    return tuple(dims and {d: dim(name) for d, name in dims.items()} for dims in dynamic)


def engine_steps(program: ExportedProgram) -> int:
    vals = [node.meta.get("val") for node in program.graph.nodes]
    fake = next(v for v in vals if isinstance(v, FakeTensor))
    assert fake.fake_mode.shape_env is not None
    return fake.fake_mode.shape_env.steps


def exports(case: Case) -> ExportedProgram:
    """The program, which must not depend on the example's sizes."""
    torch.manual_seed(0)
    model = case.model().eval()
    programs = []
    for sizes in case.examples:
        programs.append(export(model, case.inputs(**sizes), dynamic_shapes=declared(case.dynamic)))
        programs[-1].validate()
    texts = {str(program): sizes for program, sizes in zip(programs, case.examples, strict=True)}
    assert len(texts) == 1, "\n".join(f"{sizes}:\n{text}" for text, sizes in texts.items())
    assert engine_steps(programs[0]) <= case.steps
    return programs[0]


def generalises(case: Case) -> None:
    program = exports(case)
    module, model = program.module(), None
    compared = 0
    for sizes in case.sizes:
        torch.manual_seed(0)
        model = case.model().eval()
        inputs = case.inputs(**sizes)
        ours = pytree.tree_map_only(Tensor, torch.clone, inputs)
        module = program.module()
        try:
            want = run(model, inputs, 0)
        except (RuntimeError, IndexError, ValueError):
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                module(*ours)
            continue
        got = run(module, ours, 0)
        assert not (wrong := differences(got, want)), f"{sizes}: " + "\n".join(wrong)
        compared += 1
    assert compared > len(case.sizes) / 2


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    generalises(CASES[name])
