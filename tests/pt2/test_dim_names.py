"""Dims keep the names that they were declared with, in torch's programs, in files and in ONNX."""

from __future__ import annotations

import io
import shutil
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax import Dim
from lostwax.interop import from_torch, to_torch
from tests.inductor import QUICKLY
from tests.pt2.compare import assert_runs_alike, assert_same
from tests.whole import WHOLE

NAMES = ("batch", "seq_len", "height", "index", "int", "u0", "Max")
"""torch takes `h`, `i`, `u` for the beginning of something else; `int` is C++, `Max` sympy."""


class Net(nn.Module):
    """Sizes that are computed of all dims; one size is derived of the first."""

    def forward(self, x, derived, others):
        rows = x.t().contiguous().flatten() * x.shape[0]
        return rows, derived[1:], [torch.cat([o, o]) * (o.shape[0] // 2) for o in others]


ARGS = (torch.randn(4, 3), torch.randn(9), [torch.randn(n) for n in range(5, 11)])
OTHER_ARGS = (torch.randn(7, 3), torch.randn(15), [torch.randn(n) for n in range(3, 9)])


@pytest.fixture(scope="module")
def program() -> Any:
    first, *others = map(Dim, NAMES)
    dynamic = {"x": {0: first}, "derived": {0: 2 * first + 1}, "others": [{0: d} for d in others]}
    return lostwax.export(Net(), ARGS, dynamic_shapes=dynamic)


def read_input_names(theirs: Any) -> list[str]:
    tensors = [n.meta["val"] for n in theirs.graph.nodes if n.op == "placeholder"]
    return [str(t.shape[0]) for t in tensors]


def test_ours(program: Any) -> None:
    """The names that symbols get which nobody has declared are left to these."""
    text, ranges = str(program), program.range_constraints
    assert 'x: "f32[batch, 3]", derived: "f32[2*batch + 1]"' in text
    assert all(f"f32[{name}]" in text for name in NAMES[1:] if name != "u0")
    assert "f32[s0]" in text, "u0 is a number of data's"
    assert {"batch", "2*batch + 1", "seq_len", "s0"} <= {str(each) for each in ranges}
    assert str(from_torch(to_torch(program)).range_constraints).count("batch") == 2


def test_torchs_program(program: Any) -> None:
    theirs = to_torch(program)
    theirs.validate()
    first, *others = [f"s_{name}" for name in NAMES]
    assert read_input_names(theirs) == [first, f"2*{first} + 1", *others]
    assert {str(s) for s in theirs.range_constraints} == {first, f"2*{first} + 1", *others}
    assert_runs_alike(theirs.module(), program.module(), OTHER_ARGS, {})
    core = theirs.run_decompositions()
    assert read_input_names(core) == read_input_names(theirs)
    assert_runs_alike(core.module(), program.module(), OTHER_ARGS, {})


def test_plain_names(program: Any) -> None:
    theirs = to_torch(program, plain_names=True)
    assert read_input_names(theirs) == [
        *("batch", "2*batch + 1", "seq_len", "height", "index", "int"),
        *("s_u0", "s_Max"),  # which torch would not read rightly
    ]
    assert_runs_alike(theirs.run_decompositions().module(), program.module(), OTHER_ARGS, {})


def test_files(program: Any) -> None:
    buffer = io.BytesIO()
    lostwax.save(program, buffer)
    theirs = torch.export.load(io.BytesIO(buffer.getvalue()))
    assert read_input_names(theirs) == read_input_names(to_torch(program))
    assert_runs_alike(theirs.run_decompositions().module(), program.module(), OTHER_ARGS, {})
    assert str(lostwax.load(io.BytesIO(buffer.getvalue()))) == str(program)


def test_there_and_back(program: Any) -> None:
    again = from_torch(to_torch(program))
    assert again.graph_module.print_readable(False) == program.graph_module.print_readable(False)
    assert read_input_names(to_torch(again)) == read_input_names(to_torch(program))


def test_a_name_that_another_symbol_has() -> None:
    """Sizes without a name are `s0`, `s1`…; a dim may be called so, or `s_batch` beside `batch`."""

    class Sum(nn.Module):
        def forward(self, a, b, c):
            return a * 2, b * 2, c * 2

    args = tuple(torch.randn(n) for n in (3, 4, 5))
    dynamic = ({0: Dim.AUTO}, {0: Dim("s0")}, {0: Dim("_s0")})
    ours = lostwax.export(Sum(), args, dynamic_shapes=dynamic)
    for plain in (False, True):
        theirs = to_torch(ours, plain_names=plain)
        assert len(set(read_input_names(theirs))) == 3
        assert_runs_alike(theirs.module(), ours.module(), tuple(reversed(args)), {})


@pytest.mark.filterwarnings("ignore")
def test_onnx(program: Any) -> None:
    made = torch.onnx.export(to_torch(program, plain_names=True), (), dynamo=True, verbose=False)
    assert made is not None
    shapes = [[str(d) for d in value.shape] for value in made.model.graph.inputs]
    assert shapes[:2] == [["batch", "3"], ["2*batch + 1"]]
    assert [shape[0] for shape in shapes[2:6]] == ["seq_len", "height", "index", "int"]


@pytest.mark.skipif(not WHOLE, reason="takes half a minute: make fuzz")
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_inductor(program: Any, tmp_path: Any) -> None:
    """Its C++ knows a size by the first letter of its name."""
    import torch._inductor

    path = torch._inductor.aoti_compile_and_package(
        to_torch(program), package_path=str(tmp_path / "names.pt2"), inductor_configs=QUICKLY
    )
    assert_same(torch._inductor.aoti_load_package(path)(*OTHER_ARGS), Net()(*OTHER_ARGS))
