"""Names of `executorch.exir`, and operators of a user's own that kernels are declared for."""

from __future__ import annotations

import pytest
import torch

import lostwax
from lostwax.errors import LoweringError
from lostwax.interop.exir import ExecutorchBackendConfig, exir_ops, to_edge


def test_the_names_lead_to_ours() -> None:
    assert exir_ops.edge.aten.add.Tensor is lostwax.ops.edge.aten.add.Tensor
    edge = to_edge(lostwax.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)))
    assert edge.to_executorch().buffer == edge.to_executable().buffer
    config = ExecutorchBackendConfig(external_constants=True, extract_delegate_segments=True)
    assert config == lostwax.ExecutableConfig(weights_beside=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"memory_planning_pass": None}, "memory is planned by lifetimes"),
        ({"emit_stacktrace": True}, "etrecord=True"),
        ({"extract_delegate_segments": False}, "here it is always True"),
        ({"colour": 1}, "has no option 'colour'"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(LoweringError, match=text):
        ExecutorchBackendConfig(**options)


@torch.library.custom_op("lostwax_exir_test::twice", mutates_args=())
def twice(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n


@twice.register_fake
def _(x: torch.Tensor, n: int) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_own_operator_reaches_the_file_by_its_out_variant() -> None:
    """The error says what is to be registered; registered, it is called."""
    operator = torch.ops.lostwax_exir_test.twice.default
    config = lostwax.EdgeConfig(preserve_ops=(operator,))
    program = lostwax.export(lambda x: twice(x, 2) + 1, (torch.ones(3),))
    edge = lostwax.to_edge(program, config=config)
    with pytest.raises(LoweringError) as refused:
        edge.to_executable()
    name = "lostwax_exir_test::twice.out"
    schema = "(Tensor x, SymInt n, *, Tensor(a!) out) -> Tensor(a!)"
    assert f'torch.library.define("{name}", "{schema}")' in str(refused.value)
    assert f'to_executable(kernels=["{name}"])' in str(refused.value)
    torch.library.define(name, schema)
    with pytest.raises(LoweringError, match="if your runtime has it"):
        edge.to_executable()
    listing = lostwax.pte.dump(edge.to_executable(kernels=[name]).buffer)
    assert "lostwax_exir_test::twice.out(t0, 2" in listing


def test_passes_run_before_memory_is_planned() -> None:
    """Also such as put an operator of the user's own there, and on methods with delegates."""
    name = "lostwax_exir_test::thrice"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.define(f"{name}.out", "(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    torch.library.impl(name, "CompositeExplicitAutograd", lambda x: x * 3)
    torch.library.register_fake(name, lambda x: torch.empty_like(x))
    relu, own = lostwax.ops.edge.aten.relu.default, lostwax.ops.edge.lostwax_exir_test.thrice

    def replace(module: torch.fx.GraphModule) -> None:
        for node in module.graph.find_nodes(op="call_function", target=relu):
            node.target = own.default

    program = lostwax.export(lambda x: x.relu() + 1, (torch.ones(3),))
    edge = lostwax.to_edge(program)
    config = ExecutorchBackendConfig(passes=[replace])
    with pytest.raises(LoweringError, match="if your runtime has it"):
        edge.to_executable(config)
    made = edge.to_executable(config, kernels=[f"{name}.out"])
    assert f"{name}.out(t0, t1)" in lostwax.pte.dump(made.buffer)
    assert made.instructions["forward"][0].handles == (1,)
    assert "relu" in lostwax.pte.dump(edge.to_executable().buffer)
    with pytest.raises(LoweringError, match="instead: a tuple of passes"):
        edge.to_executable(lostwax.ExecutableConfig(passes=replace))  # type: ignore[arg-type]
