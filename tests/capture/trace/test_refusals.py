"""What cannot be in a program is refused, with the user's line and a way out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from lostwax.capture import export
from lostwax.errors import (
    CaptureError,
    DataDependentError,
    InputTypeError,
    LostwaxError,
    UnsupportedFakeError,
)
from tests.capture.small import Of, X, same


def branch(self: Any, x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return -x


@pytest.mark.parametrize(
    "forward",
    [branch, lambda self, x: x if x.sum().item() > 3 else -x, lambda self, x: x.numpy()],
)
def test_data_dependent_python_is_refused_with_the_line(forward: Any) -> None:
    with pytest.raises((DataDependentError, RuntimeError)) as error:
        export(Of(forward), (X,), control_flow="refuse")
    assert "test_refusals.py" in str(error.value)


class Config:
    pass


def test_an_input_that_is_no_pytree_is_refused_with_its_path() -> None:
    text = r"the input x\['a'\]\[1\] is of type .*Config.*\n  fix: .*_pytree_node\(Config,"
    with pytest.raises(InputTypeError, match=text) as error:
        export(Of(lambda self, x: x), ({"a": [X, Config()]},))
    assert error.value.path == "x['a'][1]"

    @dataclasses.dataclass
    class Pair:
        left: torch.Tensor

    with pytest.raises(InputTypeError, match=r"the input x is [\s\S]*register_dataclass\(.*Pair\)"):
        export(Of(lambda self, x: x), (Pair(X),))


def test_a_result_that_is_no_pytree_is_refused_with_its_path() -> None:
    with pytest.raises(InputTypeError, match=r"the result\[1\]\['k'\] is of type .*Config"):
        export(Of(lambda self, x: (x, {"k": Config()})), (X,))
    with pytest.raises(InputTypeError, match=r"the result is of type builtins.set"):
        export(Of(lambda self, x: {3}), (X,))


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: x.apply_(lambda v: v + 1),
        lambda self, x: x.map_(x, lambda a, b: a + b),
        lambda self, x: torch.from_dlpack(x),
        lambda self, x: x * x.storage()[0],
        lambda self, x: x.pin_memory(),
        lambda self, x: f"{x.sum():.2f}",
    ],
)
def test_what_would_read_memory_is_refused(forward: Any) -> None:
    with pytest.raises(
        UnsupportedFakeError, match=r"needs the data of[\s\S]*at \S+/test_refusals.py"
    ):
        export(Of(forward), (X,))


def test_classes_that_decide_what_operators_do_are_refused() -> None:
    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    wrapped = TwoTensor(X, X)
    for value in (wrapped, X.as_subclass(Logged)):
        name = type(value).__name__
        with pytest.raises(UnsupportedFakeError, match=rf"class .*{name} cannot[\s\S]*instead"):
            export(Of(lambda self, x: x + 1), (value,))
    with pytest.raises(UnsupportedFakeError, match="class TwoTensor cannot"):
        export(Of(lambda self, x: x + wrapped), (X.clone(),))
    with pytest.raises(UnsupportedFakeError, match="deals with quantized tensors"):
        export(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), (X,))


def test_lazy_modules_are_refused_and_the_way_out_works() -> None:
    module = nn.LazyLinear(2)
    with pytest.raises(UnsupportedFakeError, match=r"lazy module[\s\S]*call the module once"):
        export(module, (X,))
    module(X)
    same(module, X)


def test_sparse_inputs_are_refused() -> None:
    with pytest.raises(RuntimeError, match="strided"):
        export(Of(lambda self, x: x), (torch.eye(3).to_sparse(),))


def test_the_truth_of_a_number_is_refused_with_a_way_out() -> None:
    text = r"cannot decide[\s\S]*test_refusals.py[\s\S]*torch\.where\(condition, a, b\)"
    with pytest.raises(DataDependentError, match=text):
        export(lambda x: x if x[0, 0] else -x, (X,), control_flow="refuse")
    same(Of(lambda self, x: x if torch.tensor(2.0) else -x), X)


def test_the_truth_of_a_tensor_is_refused_and_the_ways_out_work() -> None:
    with pytest.raises(DataDependentError) as error:
        export(Of(branch), (X,), control_flow="refuse")
    line = branch.__code__.co_firstlineno + 1
    assert error.value.args[0] == (
        "cannot decide a branch while tracing: the truth of a tensor depends on data\n"
        f"  asked at tests/capture/trace/test_refusals.py:{line} in branch: if x.sum() > 0:\n"
        "  fix: compute both ways and choose, torch.where(condition, a, b);\n"
        "  or, if it is always the same, state it: c = condition.item(); torch._check(c), or "
        "torch._check(torch.sym_not(c)); if c: ..."
    )

    def stated(self: Any, x: torch.Tensor) -> torch.Tensor:
        c = (x.sum() > 0).item()
        torch._check(c)
        return x if c else -x

    same(Of(stated), X.abs())
    same(Of(lambda self, x: torch.where(x.sum() > 0, x, -x)), X)


def test_where_a_truth_comes_from_is_told() -> None:
    def later(self: Any, x: torch.Tensor) -> torch.Tensor:
        c = (x.sum() > 0).item()
        return x if c else -x

    text = r"it comes from item\(\) at .*c = \(x.sum\(\) > 0\).item\(\)\n  asked at .*return x if c"
    with pytest.raises(DataDependentError, match=text):
        export(Of(later), (X,), control_flow="refuse")


def test_a_literal_of_computed_values_is_refused_with_a_way_out() -> None:
    with pytest.raises(TypeError, match=r"test_refusals.py[\s\S]*torch.stack"):
        export(lambda x: torch.tensor([x.sum(), x.mean()], requires_grad=True), (X,))


@pytest.mark.parametrize("ask", [lambda x: bool(x.sum() > 0), lambda x: x.numpy().any()])
def test_a_refusal_that_the_module_catches_is_one(ask: Any) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        try:
            return x if ask(x) else -x
        except Exception:
            return x * 3

    with pytest.raises(CaptureError, match="own code caught this error and went on") as caught:
        export(forward, (X,), control_flow="refuse")
    assert "test_refusals.py" in str(caught.value)


def test_errors_that_eager_raises_may_be_caught() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            return x.view(1000)
        except RuntimeError:
            return x * 3

    same(Of(forward), X)


@pytest.mark.parametrize(
    ("forward", "what", "instead"),
    [
        (lambda x: x * len(f"{x.sum().item():.3f}"), "is not known while tracing", "compute with"),
        (lambda x: x * x.untyped_storage()[0], "storage of a tensor needs", "compute with"),
        (lambda x: x if len(x[x > 0]) > 3 else -x, "u0 depends on data", "compute with"),
        (lambda x: x.to_mkldnn(), "deals with mkldnn tensors", "a dense tensor"),
    ],
)
def test_what_needs_data_or_memory_is_told_with_the_line(
    forward: Any, what: str, instead: str
) -> None:
    with pytest.raises(LostwaxError) as caught:
        export(forward, (X,), control_flow="refuse")
    text = str(caught.value)
    assert what in text
    assert "test_refusals.py" in text
    assert f"instead: {instead}" in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantized_modules_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # The default, x86, is not to be had on every processor.
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")
    quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 2)))
    with pytest.raises(UnsupportedFakeError, match="quantized::linear_dynamic works on") as caught:
        export(quantized, (X,))
    assert "instead: export the module as it was before it was quantized" in str(caught.value)


def test_hooks_for_all_modules_are_refused() -> None:
    handle = nn.modules.module.register_module_full_backward_hook(lambda *args: None)
    try:
        with pytest.raises(CaptureError, match=r"torch.nn has backward hooks for all modules"):
            export(nn.Linear(4, 2), (X,))
        with torch.no_grad():
            export(nn.Linear(4, 2), (X,))
    finally:
        handle.remove()
