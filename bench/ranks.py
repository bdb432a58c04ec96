"""The programs of all ranks of a tensor-parallel Llama, from one process and without weights.

    python -m bench.ranks [--layers 80] [--ranks 8] [--embedding rows|columns|whole] [--json]
    python -m bench.ranks --against-torch --layers 8

The decoder has the shape of Llama 70B (transformers' classes, bfloat16, on `meta`), cut as users
cut it: `parallelize_module` with columns and rows. `lostwax.export_ranks` exports the programs of
all ranks, which takes the building of each module, too. Processor time, and the highest resident
memory of the process, imports counted. With `--against-torch` instead: the export of one rank,
beside torch.export of the plain model with decompositions (of the parallel one it fails), in turn,
the least of a few. Exits with 1 when a bar is missed. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lostwax
from bench.clock import processor_seconds
from bench.memory import resident
from sweep.libraries import import_torchvision

BAR_SECONDS, BAR_MB, BAR_TIMES = 20, 1000, 30
SIZES = {
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "vocab_size": 128_256,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
EMBEDDING: dict[str, Any] = {
    "rows": RowwiseParallel(input_layouts=Replicate()),
    "columns": ColwiseParallel(output_layouts=Replicate()),
}


class Logits(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.whole = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.whole(input_ids=tokens, use_cache=False).logits
        return logits


def make_plan(embedding: str) -> dict[str, Any]:
    plan: dict[str, Any] = {"lm_head": ColwiseParallel(output_layouts=Replicate())}
    if embedding in EMBEDDING:
        plan["model.embed_tokens"] = EMBEDDING[embedding]
    layer = "model.layers.*"
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        plan[f"{layer}.{name}"] = ColwiseParallel()
    for name in ("mlp.gate_proj", "mlp.up_proj"):
        plan[f"{layer}.{name}"] = ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[f"{layer}.{name}"] = RowwiseParallel()
    return plan


def make_plain(layers: int) -> Logits:
    with torch.device("meta"):
        return Logits(layers).to(torch.bfloat16).eval()


def make_parallel(layers: int, mesh: Any, embedding: str) -> Logits:
    model = make_plain(layers)
    parallelize_module(model.whole, mesh["tp"], make_plan(embedding))
    return model


def export_all(layers: int, ranks: int, embedding: str) -> dict[str, Any]:
    def make(mesh: Any) -> nn.Module:
        return make_parallel(layers, mesh, embedding)

    tokens = torch.zeros(2, 2048, dtype=torch.long, device="meta")
    clock, processor = time.perf_counter(), time.process_time()
    programs = lostwax.export_ranks(make, (tokens,), mesh={"tp": ranks})
    seconds = time.process_time() - processor
    shard = sum(each.numel() for each in programs[0].state_dict.values())
    return {
        "billions": round(shard / 1e9 * ranks, 1),  # what is on all ranks counts for each
        "ranks": ranks,
        "graphs": len(programs.groups),
        "nodes": len(programs[0].graph.nodes),
        "processor_s": round(seconds, 2),
        "clock_s": round(time.perf_counter() - clock, 2),
        "peak_mb": round(resident("VmHWM")),
    }


def compare(layers: int, ranks: int, embedding: str) -> dict[str, Any]:
    """The export of a rank beside torch.export of the plain model with decompositions."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    tokens = (torch.zeros(2, 64, dtype=torch.long, device="meta"),)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    model, plain = make_parallel(layers, mesh, embedding), make_plain(layers)
    ours, theirs = list[float](), list[float]()
    with torch.no_grad():
        for _ in range(2):
            ours += [processor_seconds(lambda: lostwax.export(model, tokens)) for _ in range(2)]
            work = lambda: torch.export.export(plain, tokens).run_decompositions()  # noqa: E731
            theirs.append(processor_seconds(work))
    torch.distributed.destroy_process_group()
    return {"ours_s": round(min(ours), 3), "torch_s": round(min(theirs), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=__doc__)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--embedding", choices=[*EMBEDDING, "whole"], default="rows")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    parser.add_argument("--against-torch", action="store_true", help="one rank beside torch.export")
    options = parser.parse_args()
    import_torchvision()
    import transformers.models.llama.modeling_llama  # noqa: F401

    if options.against_torch:
        taken = compare(options.layers, options.ranks, options.embedding)
        times = taken["torch_s"] / taken["ours_s"]
        told = json.dumps(taken) if options.json else f"{taken}: {times:.1f}× (bar: {BAR_TIMES})"
        print(told)
        return int(times < BAR_TIMES)
    found = export_all(options.layers, options.ranks, options.embedding)
    if options.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['billions']} billion weights on {found['ranks']} ranks: {found['graphs']} "
            f"graphs of {found['nodes']:,} nodes in {found['processor_s']:.1f} s of the processor "
            f"({found['clock_s']:.1f} by the clock; bar: {BAR_SECONDS}), peak {found['peak_mb']} "
            f"MB, imports counted (bar: {BAR_MB})"
        )
    return int(found["processor_s"] > BAR_SECONDS or found["peak_mb"] > BAR_MB)


if __name__ == "__main__":
    sys.exit(main())
