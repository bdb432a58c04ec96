"""After an export torch is what it was: its modules' attributes, the code of its functions, the
methods of its classes, its flags; and nothing of ours is in its tables but what is documented."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from examples.models import MODELS
from lostwax import Dim, export
from tests.fresh import run_python

FOR_GOOD = {"_has_compatible_shallow_copy_type", "_check_with", "_check_is_size"}
"""And operators of `SymInt`, `SymFloat` and `SymBool`: see docs/export.md."""
OTHERS = ("math", "operator", "random", "numpy.random", "importlib._bootstrap")
PACKAGE = str(Path(lostwax.__file__).parent) + "/"


def modules() -> Iterator[tuple[str, Any]]:
    for name, module in list(sys.modules.items()):
        if module is not None and (name.partition(".")[0] == "torch" or name in OTHERS):
            yield name, module


def attributes() -> dict[Any, Any]:
    """Whatever can be exchanged, by where it is."""
    found: dict[Any, Any] = {}
    for name, module in modules():
        found[name] = type(module)
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if type(value) is FunctionType:
                found[name, key, "code"] = value.__code__
            elif isinstance(value, type) and value.__module__.partition(".")[0] == "torch":
                for method, held in list(vars(value).items()):
                    found[name, key, method] = held
                    function = getattr(held, "__func__", held)
                    if type(function) is FunctionType:
                        found[name, key, method, "code"] = function.__code__
    return found


def flags() -> dict[str, Any]:
    return {
        "keys": str(torch._C._dispatch_tls_local_include_set()),
        "excluded": str(torch._C._dispatch_tls_local_exclude_set()),
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "defaults": (torch.get_default_dtype(), torch.get_default_device()),
        "mkldnn": torch._C._get_mkldnn_enabled(),
        "lifts": torch._C._only_lift_cpu_tensors(),
        "fast": torch.backends.mha.get_fastpath_enabled(),
        "exporting": (torch.compiler.is_exporting(), torch.compiler.is_compiling()),
    }


def changed(before: dict[Any, Any], after: dict[Any, Any]) -> list[Any]:
    return [
        (where, value, after.get(where))
        for where, value in before.items()
        if after.get(where, value) is not value and after.get(where) != value
        if value is not None or not is_of_torch(after[where])  # looked up on first use
    ]


def is_of_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("torch.")


def of_ours(value: Any) -> bool:
    is_function = type(value) is FunctionType
    return is_function and value.__code__.co_filename.startswith(PACKAGE)


def ours() -> list[Any]:
    """Our functions that torch's modules hold, in attributes or in tables."""
    found = []
    for name, module in modules():
        for key, value in list(vars(module).items()):
            held = [value]
            if type(value) in (list, set, tuple, frozenset):
                held = list(value)
            elif type(value) is dict:
                held = [*value, *value.values()]
            found += [(name, key, each) for each in held if of_ours(each)]
    return [f for f in found if f[2].__name__ not in FOR_GOOD and f[2].__name__ != "_alike"]


class StaticCache(nn.Module):
    """Keys and values of a fixed length that are written in place, and marked as compilers like
    them, which imports one."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 2, 16, 4))
        self.register_buffer("values", torch.zeros(1, 2, 16, 4))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        if "torch._dynamo" not in sys.modules:
            from torch import _dynamo

            assert _dynamo.mark_static_address
        state = self.project(x).view(1, -1, 2, 4).transpose(1, 2)
        self.keys.index_copy_(2, position, state)
        self.values.index_copy_(2, position, state)
        return nn.functional.scaled_dot_product_attention(state, self.keys, self.values)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, about attributes of its own
def test_torch_is_as_before_over_the_examples() -> None:
    export(nn.Linear(2, 2), (torch.ones(3, 2),), dynamic_shapes=({0: Dim("n")},))  # for good
    before, set_before = attributes(), flags()
    for example in MODELS.values():
        export(example.tiny().eval(), example.tiny_inputs())
        sizes = tuple(dict.fromkeys(dims, Dim.AUTO) for dims in example.dynamic)
        export(example.tiny().train(), example.tiny_inputs(), dynamic_shapes=sizes)
    assert changed(before, attributes()) == []
    assert flags() == set_before
    assert ours() == []


def static_cache() -> None:
    """In a process of its own: the compiler is imported in the middle of the export."""
    assert "torch._dynamo" not in sys.modules
    set_before = flags()
    module, x, position = StaticCache(), torch.randn(1, 3, 8), torch.arange(3)
    program = export(module, (x, position))
    assert "torch._dynamo" in sys.modules
    assert flags() == set_before
    assert ours() == []
    torch.testing.assert_close(program.module()(x, position), module(x, position))
    before = attributes()
    export(module, (x, position))
    assert changed(before, attributes()) == []


def test_torch_is_as_before_after_a_static_cache() -> None:
    code = "from tests.capture.patches.test_torch_unchanged import static_cache; static_cache()"
    run_python(code, ignore_warnings=True)


KINDS = """
import torch
alike = torch._has_compatible_shallow_copy_type
from torch import nn
import lostwax
lostwax.export(nn.Linear(2, 2), (torch.ones(3, 2),), dynamic_shapes=({0: lostwax.Dim("n")},))
lostwax.export(nn.Linear(2, 2).double(), (torch.ones(3, 2).double(),))
assert torch._has_compatible_shallow_copy_type is alike
with lostwax.FakeTensorMode():
    tied = nn.Linear(2, 2)
    both = nn.Sequential(tied, tied)
    assert torch._has_compatible_shallow_copy_type is alike
    weight = tied.weight
    both.to("cuda")
assert tied.weight is weight and weight.is_cuda
assert torch._has_compatible_shallow_copy_type is not alike
assert torch._has_compatible_shallow_copy_type(torch.ones(2), torch.ones(3))
assert not torch._has_compatible_shallow_copy_type(torch.ones(2), torch.ones(3, device="meta"))
"""


def test_what_is_changed_for_good_is_changed_when_it_is_needed() -> None:
    run_python(KINDS, ignore_warnings=True)
