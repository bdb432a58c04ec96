"""Programs of tensors on devices that this machine does not have: what C++ makes for such a tensor
by itself is made on the user's device, in what is recorded as in what is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, fx

import lostwax
from lostwax import ExportedProgram
from lostwax.fake import FakeTensorMode

Program = Callable[[Tensor], Any]


def write_number(x: Tensor) -> Tensor:
    mask = torch.ones_like(x)
    mask[:, :2] = 0
    return mask


def write_where(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 1] = 3.0
    return y


def write_row(x: Tensor) -> Tensor:
    y = x.clone()
    y[-1] = 5
    y[..., None] = 1
    y[:, 1:][0] = True
    return y


def write_places(x: Tensor) -> Tensor:
    y = x.clone()
    y[x.shape[0] - 1, [0, 2]] = 7
    return y


def write_tensor(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = torch.tensor(2.0)
    return y


def choose(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0) + torch.where(x > 1, 1.0, 0.0)


def one_hot(x: Tensor) -> Tensor:
    return F.one_hot(x.long().abs() % 3, 3)


def combine(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.combinations(x[0]), torch.cartesian_prod(x[0], x[1])


def new(x: Tensor) -> tuple[Tensor, ...]:
    return x.new_zeros(3), x.new_full((2,), 1), x.new_tensor([1.0, 2.0]), torch.ones(2).to(x)


def take_over(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.arange(12).reshape(3, 4)
    return x.to(other=y.to(x)), y.type_as(x), torch.zeros_like(x), torch.full_like(x, 2)


def pad(x: Tensor) -> tuple[Tensor, ...]:
    return F.pad(x, (1, 1), value=2.0), F.pad(x[None], (1, 1), mode="reflect"), x.diag_embed()


def layers(x: Tensor) -> tuple[Tensor, ...]:
    y = F.layer_norm(x, (4,))
    return y, F.dropout(y, training=True), F.scaled_dot_product_attention(x, x, x, is_causal=True)


def losses(x: Tensor) -> tuple[Tensor, ...]:
    there = torch.ones_like(x)
    return F.cross_entropy(x, x.argmax(1)), F.mse_loss(x, there), F.smooth_l1_loss(x, there)


def statistics(x: Tensor) -> tuple[Tensor, ...]:
    return torch.cov(x), torch.quantile(x, 0.3), torch.std(x), x.cummax(1)[0], torch.histc(x.abs())


def differentiate(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    z = y.clone()
    z[:, 0] = 0
    out = (z[y > 0].sum() + z.index_select(0, torch.tensor([0]).to(x.device)).prod()).relu()
    return torch.autograd.grad(out, y)[0]


PROGRAMS: list[Program] = [
    *(write_number, write_where, write_row, write_places, write_tensor, choose, one_hot, combine),
    *(new, take_over, pad, layers, losses, statistics, differentiate),
]


def export_on(device: str, program: Program, **options: Any) -> ExportedProgram:
    with FakeTensorMode():
        x = torch.empty(3, 4, device=device)
    return lostwax.export(program, (x,), **options)


def find_devices(program: ExportedProgram) -> dict[str, set[str]]:
    """The calls by the devices that they name, or that their results are on."""
    found: dict[str, set[str]] = {}
    for graph in program.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, fx.GraphModule) else ():
            tensors = (v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor))
            named = pytree.tree_leaves((node.args, node.kwargs))
            devices = [t.device for t in tensors], [d for d in named if isinstance(d, torch.device)]
            for device in (*devices[0], *devices[1]):
                found.setdefault(str(device), set()).add(f"{node.name}: {node.target}")
    return found


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "xpu", "mps:0"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_all_is_on_the_users_device(program: Program, device: str) -> None:
    exported = export_on(device, program)
    exported.validate()
    found = find_devices(exported)
    own = device if ":" in device else f"{device}:0"
    assert {*found} <= {own, "cpu"}, found
    literal = {"new", "take_over", "write_tensor", "write_places", "differentiate"}
    assert program.__name__ in literal or "cpu" not in found, found["cpu"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_parts_of_composites_are_too(program: Program) -> None:
    exported = export_on("cuda", program, keep="composite").run_decompositions()
    exported.validate()
    assert "meta" not in find_devices(exported)


def test_the_device_of_another_tensor_is_its_own() -> None:
    """Two devices that are absent: to C++, both are `meta`."""

    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = torch.zeros_like(x), torch.zeros_like(y)
        a[0], b[0] = 1, 2
        return a, b, x.to(y), torch.where(y > 0, y, 1.0)

    with FakeTensorMode():
        x, y = torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")
    out = lostwax.export(forward, (x, y))
    out.validate()
    (values,) = out.graph.output_node().args
    assert [str(n.meta["val"].device) for n in values] == ["cuda:0", "cuda:1", "cuda:1", "cuda:1"]
    named = [str(n.kwargs["device"]) for n in out.graph.nodes if "device" in n.kwargs]
    assert {*named} == {"cuda:0", "cuda:1"}


def test_meta_that_the_user_names_stays() -> None:
    def forward(x: Tensor) -> tuple[Tensor, ...]:
        shape = torch.zeros(3, device="meta")
        shape[0] = 1
        x = x.clone()
        x[0] = 2
        return shape, x

    with FakeTensorMode():
        x = torch.empty(3, device="cuda")
    out = lostwax.export(forward, (x,))
    out.validate()
    (values,) = out.graph.output_node().args
    assert [str(n.meta["val"].device) for n in values] == ["meta", "cuda:0"]


def test_a_mode_alone_knows_the_devices_apart() -> None:
    with FakeTensorMode():
        x, y = torch.empty(3, device="cuda:0"), torch.empty(3, device="cuda:1")
        assert torch.where(x > 0, x, 0.0).device == torch.device("cuda:0")
        assert torch.where(y > 0, y, 0.0).device == torch.device("cuda:1")
        assert torch.zeros(3, device="meta").device == torch.device("meta")


def split_by_literals(x: Tensor) -> Any:
    grid = torch.tensor([[1, 2, 2], [2, 1, 2]], device=x.device)
    rows = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    places = torch.nonzero(grid == 2)
    return x.split(rows.tolist()), places, x[: int(places[-1, 0])], grid[grid > 1].tolist()


def test_what_is_computed_of_literals_is_known() -> None:
    """Also where its size depends on values, and it lies otherwise in memory than on the CPU."""
    want = split_by_literals(torch.ones(8, 3))
    with FakeTensorMode():
        x = torch.ones(8, 3, device="cuda")
    program = lostwax.export(split_by_literals, (x,))
    values = [node.meta["val"] for node in program.graph.output_node().args[0][:-4]]  # type: ignore[union-attr, index, misc]
    parts, places, head = pytree.tree_leaves(want[:3])[:3], want[1], want[2]
    assert [v.shape for v in values] == [t.shape for t in (*parts, places, head)]
    (found,) = [v for v in values if v.dtype is torch.int64]
    assert (found.stride(), found.device.type) == ((1, 4), "cuda")
    assert want[3] == [2, 2, 2, 2]
    assert list(program.graph.output_node().args[0][-4:]) == want[3]  # type: ignore[arg-type, index]


def test_the_order_of_a_device_is_not_known() -> None:
    def ordered(x: Tensor) -> Tensor:
        kinds = torch._unique2(torch.tensor([3, 1, 3], device=x.device), sorted=False)[0]
        return x + int(kinds[0])

    with FakeTensorMode():
        x = torch.ones(2, device="cuda")
    program = lostwax.export(ordered, (x,))
    assert any(node.target is torch.ops.aten._unique2.default for node in program.graph.nodes)
