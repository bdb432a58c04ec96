"""What is written for torch.export runs with lostwax: its argument names, and what they do."""

from __future__ import annotations

import io
from types import MappingProxyType

import pytest
import torch

import lostwax
from lostwax import Dim
from lostwax.errors import (
    ConstraintViolationError,
    InputValueError,
    LoadError,
    NotYetError,
    SaveError,
)


class Pair(torch.nn.Module):
    def forward(self, x, y):
        return x + y


@pytest.fixture(scope="module")
def program():
    return lostwax.export(Pair(), (torch.ones(3), torch.ones(3)))


def test_files_take_the_arguments_of_torch(program):
    file = io.BytesIO()
    opset = {"mine": 2}
    lostwax.save(ep=program, f=file, extra_files={"a": "b"}, opset_version=opset, pickle_protocol=4)
    version = torch._C._get_max_operator_version()
    file.seek(0)
    found: dict[str, str] = {"a": ""}
    expected = {"aten": version, "mine": 2}
    loaded = lostwax.load(f=file, extra_files=found, expected_opset_version=expected)
    assert found == {"a": "b"}
    assert loaded.module()(torch.ones(3), torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    file.seek(0)
    assert torch.export.load(file) is not None


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_example_call_is_read_whatever_its_protocol(program, protocol):
    file = io.BytesIO()
    lostwax.save(program, file, pickle_protocol=protocol)
    file.seek(0)
    assert lostwax.load(file).example_inputs is not None


@pytest.mark.parametrize("opset", [{"aten": 1}, {"mine": "2"}])
def test_versions_that_are_not_true_are_not_written(program, opset):
    with pytest.raises(SaveError, match="opset_version says"):
        lostwax.save(program, io.BytesIO(), opset_version=opset)


@pytest.mark.parametrize("expected", [{"aten": 1}, {"mine": 2}])
def test_another_version_than_the_expected_is_refused(program, expected):
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    with pytest.raises(LoadError, match="expected_opset_version says"):
        lostwax.load(file, expected_opset_version=expected)


def test_load_gives_a_dict_if_asked_for_it(program):
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    assert list(lostwax.load(file, by_name=True)) == ["model"]


def test_arguments_by_the_names_of_torch(program):
    assert lostwax.unflatten(module=program, flat_args_adapter=None) is not None
    assert program.run_decompositions(decomp_table=None, decompose_custom_triton_ops=False)
    with pytest.raises(NotYetError, match="decompose_custom_triton_ops"):
        program.run_decompositions(decompose_custom_triton_ops=True)
    inputs = lostwax.AdditionalInputs()
    inputs.add((torch.ones(3),), MappingProxyType({"y": torch.ones(3)}))
    inputs.verify(ep=program)


def test_kwargs_are_any_mapping():
    kwargs = MappingProxyType({"y": torch.ones(3)})
    program = lostwax.export(Pair(), (torch.ones(3),), kwargs)
    assert program.module()(torch.ones(3), y=torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


class Regroup(torch.nn.Module):
    def forward(self, x, y):
        return x.view(y.shape[0], 4)


class Branch(torch.nn.Module):
    def forward(self, x, y):
        return x.sin() if x.shape[0] > 3 * y.shape[0] else x.cos()


class Narrow(torch.nn.Module):
    def forward(self, x, y):
        return x.sin() if x.shape[0] > 5 else x.cos()


class Fixed(torch.nn.Module):
    def forward(self, x, y):
        return x + torch.ones(8)


SHAPES = ({0: Dim("a")}, {0: Dim("b")})


@pytest.mark.parametrize("module", [Regroup(), Branch()])
def test_deferred_relations_are_checked_in_each_call(module):
    args = torch.randn(8), torch.randn(2)
    with pytest.raises(ConstraintViolationError):
        lostwax.export(module, args, dynamic_shapes=SHAPES)
    options = {"prefer_deferred_runtime_asserts_over_guards": True}
    program = lostwax.export(module, args, dynamic_shapes=SHAPES, **options)
    run = program.module()
    fits, differs = (torch.randn(12), torch.randn(3)), (torch.randn(4), torch.randn(9))
    assert torch.equal(run(*fits), module(*fits))
    with pytest.raises(InputValueError):
        run(*differs)


@pytest.mark.parametrize("module", [Fixed(), Narrow()])
def test_what_restricts_one_size_alone_is_not_deferred(module):
    args = torch.randn(8), torch.randn(2)
    with pytest.raises(ConstraintViolationError):
        lostwax.export(
            module, args, dynamic_shapes=SHAPES, prefer_deferred_runtime_asserts_over_guards=True
        )
