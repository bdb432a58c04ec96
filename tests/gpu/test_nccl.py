"""Programs with collectives on a GPU, by NCCL: one rank, since NCCL takes one process per GPU. What
two ranks give each other is tested with gloo (`tests/distributed`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import lostwax
from lostwax import Dim
from lostwax.torch_version import TORCH
from tests.distributed import ranks
from tests.distributed.sharded import WORDS, make_llama, make_sequence_parallel

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceMesh]:
    store = tmp_path_factory.mktemp("nccl") / "store"
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    yield init_device_mesh("cuda", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def reduce(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y, dist.ReduceOp.AVG)
    return y + 1


def gather(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x)]
    dist.all_gather(parts, x)
    joined = torch.empty_like(x)
    dist.all_gather_into_tensor(joined, x * 3)
    return parts[0] + joined


def scatter(x: Tensor) -> Tensor:
    out, swapped = torch.empty_like(x), torch.empty_like(x)
    dist.reduce_scatter_tensor(out, x)
    dist.all_to_all_single(swapped, x + 1)
    dist.broadcast(out, 0)
    return out - swapped


def wait(x: Tensor) -> Tensor:
    y = x + 1
    work = dist.all_reduce(y, async_op=True)
    z = x.sin()
    assert work is not None
    work.wait()
    return functional.all_gather_tensor(y * z, 1, dist.group.WORLD)


@pytest.mark.parametrize("function", [reduce, gather, scatter, wait])
def test_collectives(function: Callable[[Tensor], Tensor], mesh: DeviceMesh) -> None:
    x = torch.randn(4, 3, device="cuda")
    program = lostwax.export(function, (x.clone(),), dynamic_shapes=({0: Dim("rows", min=2)},))
    for each in (program, program.run_decompositions(), ranks.reload(program)):
        for rows in (4, 7):
            x = torch.randn(rows, 3, device="cuda")
            assert torch.equal(each.module()(x.clone()), function(x.clone()))


@pytest.mark.parametrize("make", [make_llama, make_sequence_parallel])
def test_tensor_parallel(make: Callable[[DeviceMesh], Any], mesh: DeviceMesh) -> None:
    with torch.device("cuda"):
        model = make(mesh).eval().requires_grad_(False)
    tokens = torch.randint(WORDS, (2, 6), device="cuda")
    # Before torch 2.13 `matmul` of DTensors reads sizes as plain numbers.
    varies = TORCH >= (2, 13)
    shapes = ({0: Dim("batch"), 1: Dim("length")},) if varies else None
    program = lostwax.export(model, (tokens,), dynamic_shapes=shapes)
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    for each in (program, lostwax.load(file, mesh=mesh)):
        for size in ((2, 6), (3, 5)) if varies else ((2, 6),):
            tokens = torch.randint(WORDS, size, device="cuda")
            want = model(tokens)
            torch.testing.assert_close(each.module()(tokens), want.clone())


def test_in_a_graph_of_cuda(mesh: DeviceMesh) -> None:
    """A program with collectives in a CUDA graph, which serving engines replay."""
    x = torch.randn(4, 3, device="cuda")
    module = lostwax.export(reduce, (x,)).module()
    want = module(x).clone()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        module(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        got = module(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(got, want)
