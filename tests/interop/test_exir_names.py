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
        ({"passes": []}, r"instead: edge\.transform"),
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
