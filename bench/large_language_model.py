"""A language model of 7 billion parameters as a file, from shards of a checkpoint.

    python -m bench.large_language_model [--layers 32] [--folder DIR] [--most GB] [--check]

Shards in bfloat16 of Llama 7B's shape are written with random weights (13.5 GB; the folder is
deleted afterwards), and `lostwax export hf:DIR --llm --quantize 8da4w --embedding 8` makes a file
of them in a process of its own. What it holds is asked of the kernel all the time: memory of its
own, which it must have, and pages of files, which come and go. With `--check`, the file then says
some tokens in ExecuTorch's runtime. Exits with 1 when the memory of its own was more than `--most`
(12 GB). Linux only (/proc).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

WIDTH, INNER, WORDS, HEADS = 4096, 11008, 32000, 32
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": WORDS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}


def list_shapes(layers: int) -> list[dict[str, tuple[int, ...]]]:
    """The tensors of each shard: one for the ends, one for each two layers."""
    shards: list[dict[str, tuple[int, ...]]] = [
        {
            "model.embed_tokens.weight": (WORDS, WIDTH),
            "model.norm.weight": (WIDTH,),
            "lm_head.weight": (WORDS, WIDTH),
        }
    ]
    for first in range(0, layers, 2):
        shard: dict[str, tuple[int, ...]] = {}
        for at in range(first, min(first + 2, layers)):
            name = f"model.layers.{at}"
            for each in "qkvo":
                shard[f"{name}.self_attn.{each}_proj.weight"] = (WIDTH, WIDTH)
            shard[f"{name}.mlp.gate_proj.weight"] = (INNER, WIDTH)
            shard[f"{name}.mlp.up_proj.weight"] = (INNER, WIDTH)
            shard[f"{name}.mlp.down_proj.weight"] = (WIDTH, INNER)
            for each in ("input_layernorm", "post_attention_layernorm"):
                shard[f"{name}.{each}.weight"] = (WIDTH,)
        shards.append(shard)
    return shards


def write_checkpoint(folder: Path, layers: int) -> int:
    """Write shards; return the number of parameters."""
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    shards = list_shapes(layers)
    places: dict[str, str] = {}
    drawn, count = torch.Generator().manual_seed(0), 0
    block = torch.randn(1 << 22, generator=drawn).mul_(0.02).to(torch.bfloat16)
    for number, shapes in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {}
        for name, shape in shapes.items():
            size = torch.Size(shape).numel()
            shift = int(torch.randint(1 << 22, (), generator=drawn))
            rolled = block.roll(shift).repeat(-(-size // len(block)))[:size]
            tensors[name] = rolled.reshape(shape) + (1 if len(shape) == 1 else 0)
            places[name], count = file, count + size
        save_file(tensors, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 2 * count}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return count


def watch(process: subprocess.Popen[str]) -> dict[str, float]:
    """The most that a process holds, in GB: memory of its own, and all of it."""
    most = {"RssAnon": 0.0, "VmRSS": 0.0}
    while process.poll() is None:
        try:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except OSError:
            break
        for line in lines:
            name, _, rest = line.partition(":")
            if name in most and rest:
                most[name] = max(most[name], int(rest.split()[0]) * 1024 / 1e9)
        time.sleep(0.05)
    return most


def say_tokens(file: Path) -> list[int]:
    """What the file says after a prompt, in the runtime; the file is mapped."""
    from lostwax.pte import load_runtime

    runtime, tokens = load_runtime(file), [1, 306, 4658]
    at = 0
    for _ in range(4):
        given = tokens[at:]
        (logits,) = runtime.run([torch.tensor([given]), torch.arange(at, len(tokens))])
        at = len(tokens)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--folder", default=None, help="where there is room")
    parser.add_argument("--most", type=float, default=12.0)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        start = time.perf_counter()
        count = write_checkpoint(folder, given.layers)
        print(
            f"{count / 1e9:.2f} billion parameters, written in {time.perf_counter() - start:.0f} s"
        )
        file = folder / "model.pte"
        words = ["--llm", "--quantize", "8da4w", "--embedding", "8", "--context", "2048"]
        words += ["--length", "128", "--sdpa", "custom"]
        command = [
            sys.executable,
            "-m",
            "lostwax",
            "export",
            f"hf:{folder}",
            "-o",
            str(file),
            *words,
        ]
        start = time.perf_counter()
        process = subprocess.Popen(command, text=True)
        most = watch(process)
        seconds = time.perf_counter() - start
        if process.wait():
            return 1
        print(
            f"{seconds:.0f} s by the clock, {file.stat().st_size / 1e9:.2f} GB; memory: "
            f"{most['RssAnon']:.2f} GB of its own, {most['VmRSS']:.2f} with pages of files"
        )
        if given.check:
            print("tokens:", say_tokens(file))
        return most["RssAnon"] > given.most
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
