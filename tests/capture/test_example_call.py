"""Inputs of programs: pytrees and their leaves, and the names that they have in the graph."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax import Dim
from lostwax.capture import export
from lostwax.errors import InputStructureError, InputValueError
from lostwax.ir.pytree import register_dataclass
from tests.capture.small import Of, X, inputs, same

Point = namedtuple("Point", "a b")


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor
    name: str = "pair"


register_dataclass(Pair)


def test_pytrees_in_and_out() -> None:
    def forward(self: Any, tree: Any, *rest: Any, point: Any, none: Any = None) -> Any:
        out = OrderedDict(sum=tree["a"][0] + rest[0], point=Point(point.b, point.a))
        return out, [tree["b"], None, 3], (rest[1],)

    tree = {"a": [X, 2], "b": (X + 1,)}
    program = same(Of(forward), tree, X, X * 2, point=Point(X, X - 1))
    names = inputs(program)
    assert names == ["tree_a_0", "tree_a_1", "tree_b_0", "rest_0", "rest_1", "point_a", "point_b"]


def test_dataclasses() -> None:
    program = export(Of(lambda self, p: Pair(p.right, p.left * 2)), (Pair(X, X + 1),))
    assert inputs(program)[:2] == ["p_left", "p_right"]
    out = program.module()(Pair(X, X + 1))
    assert isinstance(out, Pair)
    torch.testing.assert_close(out.right, X * 2)


def test_a_class_registered_without_names_for_its_children() -> None:
    class Held:
        def __init__(self, value: torch.Tensor, factor: int) -> None:
            self.value, self.factor = value, factor

    pytree.register_pytree_node(
        Held, lambda h: ([h.value], h.factor), lambda children, factor: Held(*children, factor)
    )
    program = export(Of(lambda self, h: Held(h.value * h.factor, 3)), (Held(X, 2),))
    assert inputs(program) == ["h_0"]
    out = program.module()(Held(X, 2))
    torch.testing.assert_close(out.value, X * 2)
    with pytest.raises(InputStructureError, match="h is another kind of Held: 3, at capture 2"):
        program.module()(Held(X, 3))


class Optional(nn.Module):
    """Arguments with defaults, of each kind."""

    def forward(
        self, x: torch.Tensor, /, n: int = 2, mask: Any = None, *, scale: float = 3.0
    ) -> torch.Tensor:
        return x * n * scale if mask is None else x * mask * scale


def test_the_module_has_the_originals_signature() -> None:
    module, eager = export(Optional(), (X,)).module(), Optional()
    assert str(inspect.signature(module.forward)) == "(x, /, n=2, mask=None, *, scale=3.0)"
    for args, kwargs in (
        ((X,), {}),
        ((X, 2), {}),
        ((X,), {"scale": 3.0}),
        ((X, 2, None), {"scale": 3.0}),
        ((X,), {"mask": None, "n": 2}),
    ):
        torch.testing.assert_close(module(*args, **kwargs), eager(*args, **kwargs))
    again = export(module, (X,))
    assert inputs(again) == ["x"]
    assert inspect.signature(again.module().forward) == inspect.signature(module.forward)


def test_what_was_left_out_at_capture_is_fixed() -> None:
    module = export(Optional(), (X,)).module()
    with pytest.raises(InputValueError) as error:
        module(X, scale=4.0)
    assert error.value.path == "scale"
    assert error.value.args[0] == (
        "scale is the float 4.0, but it was left out at capture, and its default, the float 3.0, "
        "is baked into the program\n"
        "  fix: leave it out, or capture it again with this argument"
    )
    with pytest.raises(InputValueError, match=r"mask is a tensor f32.*its default, None, is baked"):
        module(X, 2, X)
    with pytest.raises(InputStructureError, match="5 positional arguments were given"):
        module(X, 2, None, 4, 5)


def test_what_was_given_at_capture_may_be_left_out_if_it_is_the_default() -> None:
    module = export(Optional(), (X, 2), {"scale": 3.0}).module()
    torch.testing.assert_close(module(X), X * 6)
    module = export(Optional(), (X,), {"scale": 5.0}).module()
    with pytest.raises(InputValueError, match=r"scale is the float 3.0, but .* the float 5.0"):
        module(X)
    module = export(Optional(), (X,), {"mask": X}).module()
    with pytest.raises(InputValueError, match=r"mask is None, but .* a tensor f32"):
        module(X)


def test_leaf_types() -> None:
    def forward(self: Any, x: Any, dtype: Any, device: Any, layout: Any, mf: Any, text: str) -> Any:
        assert text == "go"
        return x.to(dtype=dtype, device=device, memory_format=mf)

    same(
        Of(forward), X, torch.float64, torch.device("cpu"), torch.strided,
        torch.preserve_format, "go",
    )  # fmt: skip


def test_the_same_tensor_twice() -> None:
    program = export(Of(lambda self, x, y: x + y), (X, X))
    torch.testing.assert_close(program.module()(X, X), X + X)


def test_names_that_python_has_and_names_that_collide() -> None:
    def forward(input: torch.Tensor, d: Any) -> torch.Tensor:
        input.add_(1)
        d["a"]["b"].mul_(2)
        return input + d["a_b"]

    args = (X.clone(), {"a_b": X + 1, "a": {"b": X + 2}})
    program = export(forward, copy.deepcopy(args))
    program.validate()
    ours, eager = copy.deepcopy(args), copy.deepcopy(args)
    torch.testing.assert_close(program.module()(*ours), forward(*eager))
    torch.testing.assert_close(ours, eager)
    assert inputs(program)[0] == "input"


def test_arguments_named_as_the_generated_code_speaks() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("lifted_tensor_0", torch.ones(4))

        def forward(this, self, slice, device, c_lifted_tensor_0):
            return (
                self
                + slice * device
                - c_lifted_tensor_0
                + torch.full((4,), 2.0)
                * (torch.tensor([1.0, 2.0, 3.0, 4.0]) + this.lifted_tensor_0)
            )

    args = (X, X + 1, X + 2, X + 3)
    program = export(Odd(), args)
    program.validate()
    torch.testing.assert_close(program.module()(*args), Odd()(*args))
    torch.testing.assert_close(export(program.module(), args).module()(*args), Odd()(*args))


def test_names_that_files_cannot_have() -> None:
    program = export(lambda größe, x: größe + x, (X, X))
    assert inputs(program) == ["gr__e", "x"]
    program.module()(größe=X, x=X)


def test_a_size_is_a_size() -> None:
    def forward(self: Any, x: torch.Tensor, size: torch.Size) -> torch.Tensor:
        return x.reshape(size) * size.numel()

    program = same(Of(forward), X, torch.Size([X.numel()]))
    again = export(program.module(), (X, torch.Size([X.numel()])))
    torch.testing.assert_close(again.module()(X, torch.Size([X.numel()])), X.flatten() * X.numel())


# ---------------------------------------------------------------- example calls that do not fit


class Declared(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x * mask * scale


WRONG_CALLS = [
    ((X,), {}, "mask", "mask is missing", "pass it in args or in kwargs, kwargs={'mask': ...}"),
    (
        (X,),
        {"masks": X},
        "masks",
        "it has no argument 'masks' (did you mean 'mask'?)",
        "leave masks out, or pass one of mask, scale",
    ),
    (
        (X, X + 1),
        {"Scale": 2.0},
        "Scale",
        "it has no argument 'Scale' (did you mean 'scale'?)",
        "leave Scale out, or pass one of scale",
    ),
    (
        (X, X + 1, X + 2),
        {},
        "args[2]",
        "3 positional arguments, and it takes 2",
        "leave out what is too much",
    ),
    ((X, X + 1), {"x": X + 2}, "x", "x is given twice", "pass x once, in args or in kwargs"),
]


@pytest.mark.parametrize("sizes", [None, {"mask": {0: Dim("n")}}], ids=["static", "dynamic"])
@pytest.mark.parametrize(("args", "kwargs", "path", "what", "way"), WRONG_CALLS)
def test_an_example_call_that_does_not_fit(args, kwargs, path, what, way, sizes) -> None:
    with pytest.raises(InputStructureError) as error:
        export(Declared(), args, kwargs, dynamic_shapes=sizes)
    first, declared, called, fix = error.value.args[0].splitlines()
    assert first == f"the example call does not fit Declared.forward: {what}"
    assert declared == "  declared: Declared.forward(x, mask, *, scale=1.0)"
    assert called.startswith("  called:   (f32[")
    assert fix == f"  fix: {way}"
    assert error.value.path == path


def test_an_error_of_the_module_itself_stays_what_it_is() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x + len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len") as error:
        export(forward, (X,))
    assert not isinstance(error.value, InputStructureError)
