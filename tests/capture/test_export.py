"""`export` as a user meets it first: the documents' programs, what can be given, what cannot."""

from __future__ import annotations

import enum
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lostwax.capture import export
from lostwax.errors import NotYetError
from tests.capture.small import Of, X, inputs, same, targets
from tests.fresh import run_python


def test_the_first_program_of_the_document() -> None:
    class Mod(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            a = torch.sin(x)
            b = torch.cos(y)
            return a + b

    program = same(Mod(), torch.randn(10, 10), torch.randn(10, 10))
    assert targets(program) == ["aten.sin", "aten.cos", "aten.add.Tensor"]
    assert inputs(program) == ["x", "y"]
    text = str(program)
    assert 'sin: "f32[10, 10]" = torch.ops.aten.sin.default(x)' in text
    assert "code: a = torch.sin(x)" in text
    assert "Range constraints: {}" in text


def test_the_convolution_of_the_document() -> None:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 16, 3, padding=1)
            self.relu = nn.ReLU()
            self.maxpool = nn.MaxPool2d(3)

        def forward(self, x: torch.Tensor, *, constant: Any = None) -> torch.Tensor:
            a = self.conv(x)
            a.add_(constant)
            return self.maxpool(self.relu(a))

    program = same(M(), torch.randn(1, 3, 16, 16), constant=torch.ones(1, 16, 16, 16))
    assert inputs(program) == ["p_conv_weight", "p_conv_bias", "x", "constant"]
    assert targets(program) == [
        "aten.convolution", "aten.add.Tensor", "aten.relu", "aten.max_pool2d_with_indices",
        "<built-in function getitem>",
    ]  # fmt: skip
    signature = program.graph_signature
    assert signature.inputs_to_parameters == {
        "p_conv_weight": "conv.weight",
        "p_conv_bias": "conv.bias",
    }
    assert list(signature.user_inputs) == ["x", "constant"]
    assert list(signature.user_outputs) == ["getitem"]


def test_python_numbers_are_baked_in() -> None:
    def forward(self: Any, x: torch.Tensor, const: int, times: int) -> torch.Tensor:
        for _ in range(times):
            x = x + const
        return x

    program = same(Of(forward), X, 1, 3)
    assert targets(program) == ["aten.add.Tensor"] * 3
    with pytest.raises(ValueError, match=r"2.*3"):
        program.module()(X, 1, 2)


def test_a_single_tensor_is_a_call_with_one_argument() -> None:
    program = export(Of(lambda self, x: x + 10), torch.randn(5))
    assert targets(program) == ["aten.add.Tensor"]


def test_a_context_manager_of_the_users() -> None:
    class Counting:
        count = 0

        def __enter__(self) -> None:
            self.count += 1

        def __exit__(self, *error: object) -> None:
            self.count -= 1

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with Counting():
            return x.sin() + x.cos()

    same(Of(forward), X)


def test_functions_and_methods() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    two = Two()
    program = export(two.encode, (X,))
    assert inputs(program) == ["p_linear_weight", "p_linear_bias", "x"]
    torch.testing.assert_close(program.module()(X), two.encode(X))
    program = export(lambda x, y: x * y, (X, X))
    assert inputs(program) == ["x", "y"]
    torch.testing.assert_close(program.module()(X, X + 1), X * (X + 1))


def test_what_is_fixed_beforehand_leaves_the_state_as_it_is() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, how: Any, *, by: float = 2.0) -> torch.Tensor:
            return how(self.linear(x)) * by

    scaled = Scaled()
    for mod in (partial(scaled, how=torch.sin), partial(scaled.forward, how=torch.sin)):
        program = export(mod, (X,), {"by": 3.0})
        assert inputs(program) == ["p_linear_weight", "p_linear_bias", "x", "by"]
        torch.testing.assert_close(program.module()(X, by=3.0), scaled(X, torch.sin, by=3.0))


def test_what_comes_later_says_so() -> None:
    program = export(Of(lambda self, x: x), (X,))
    with pytest.raises(NotYetError, match=r"decompose_custom_triton_ops.* is not supported yet"):
        program.run_decompositions(decompose_custom_triton_ops=True)


def test_bad_calls() -> None:
    with pytest.raises(TypeError, match=r"for one argument write \(x,\)"):
        export(Of(lambda self, x: x), 3)
    with pytest.raises(TypeError, match="not int"):
        export(3, (X,))  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"Linear is a class of them\n  instead: make one, Linear\("
    ):
        export(nn.Linear, (X,))
    with pytest.raises(
        TypeError, match=r"not ExportedProgram\n  instead: export program.module\(\)"
    ):
        export(export(lambda x: x, (X,)), (X,))
    with pytest.raises(TypeError, match="names for keys, and has 1"):
        export(nn.Linear(4, 4), (), {1: X})


def test_torch_compile_is_looked_through() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.compile(torch.sin)(x) + torch.compile(fullgraph=True)(torch.cos)(x)

    assert targets(export(Of(forward), (X,))) == ["aten.sin", "aten.cos", "aten.add.Tensor"]


def test_what_was_compiled_before_is_captured_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = torch.distributions.Distribution
    monkeypatch.setattr(checked, "_validate_args", checked._validate_args)  # torch.compile ends it
    compiled = torch.compile(torch.sin, backend="eager")
    layer, whole = nn.Linear(4, 4), nn.Sequential(torch.compile(nn.ReLU(), backend="eager"))
    layer.compile(backend="eager")
    before = torch._dynamo.eval_frame._stance
    for module in (
        Of(lambda self, x: compiled(self.layer(x)), layer=layer),
        whole,
        torch.compile(whole, backend="eager"),
        compiled,
    ):
        program = export(module, (X,))
        assert torch._dynamo.eval_frame._stance is before
        with torch.compiler.set_stance("force_eager"):
            want = module(X)
        torch.testing.assert_close(program.module()(X), want)


def test_capturing_says_that_it_is_exporting() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() else x

    assert export(Of(forward), (X,)).module()(X).equal(X * 2)


def test_programs_are_reproducible() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert str(export(net, (X,))) == str(export(net, (X,)))


def test_the_exported_module_exports_again() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    first = export(net, (X,))
    second = export(first.module(), (X,))
    assert targets(first) == targets(second)


def test_a_module_that_writes_exports_again_without_copies_of_what_it_reads() -> None:
    first = export(nn.BatchNorm1d(4), (X,))
    second = export(first.module(), (X,))
    kinds = [t for t in targets(second) if t != "aten.clone"]
    assert kinds == targets(first)
    assert targets(second).count("aten.clone") == 3  # what is written, once
    assert second.graph_signature.buffers == first.graph_signature.buffers


def test_no_peer_is_imported() -> None:
    code = (
        "import sys, torch; from lostwax.capture import export\n"
        "export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))\n"
        "assert 'torch._dynamo' not in sys.modules, 'dynamo'\n"
        "assert 'sympy' not in sys.modules, 'sympy'"
    )
    run_python(code)


class Direction(enum.IntEnum):
    UP = 1
    DOWN = 2


class Word(enum.StrEnum):
    YES = "yes"


class Tagged(int):
    """More than a number."""


def test_results_that_are_more_than_numbers_keep_their_class() -> None:
    """In the graph they are numbers: what fx writes of others is not always Python."""

    def forward(x: torch.Tensor) -> tuple[Any, ...]:
        x.add_(1)
        return x + Direction.UP, Direction.DOWN, Word.YES, np.float64(3), Tagged(4), True, 2.5

    program = export(forward, (torch.ones(2),))
    program.validate()
    assert "2, 'yes', 3.0, 4, True, 2.5" in program.graph_module.code
    for each in (program, program.run_decompositions()):
        got, wanted = each.module()(torch.ones(2)), forward(torch.ones(2))
        assert got[1:] == wanted[1:]
        assert [*map(type, got)] == [*map(type, wanted)]
        assert torch.equal(got[0], wanted[0])
