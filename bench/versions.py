"""What a change costs: lostwax as it is in this folder beside lostwax of another.

    git worktree add ../before COMMIT
    python -m bench.versions ../before [--models resnet50 small] [--tasks warm pte] [--rounds 40]

Three processes live at once for each model: one that imports the other folder's package, one that
imports it, too, and one that imports this folder's. They do the same task in turn, and of each the
least processor time counts. The two that are alike say what a difference means on this machine:
below theirs, nothing. Where processes lie in memory makes one a few percent faster than its
like, so there are several generations of the three, and the least over all counts.

The tasks: `warm` is an export in a process that has exported the model before, `cold` the first
of a process, imports counted, each in a process of its own; `dynamic` is one of varying sizes,
`strict` one with `strict=True`, `core` its `run_decompositions()`, `pte` its way to an executable,
`save` and `load` its `.pt2` file. Exits with 1 when a task takes more than 3 % longer here.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

BAR = 1.03
HERE = str(Path(__file__).parents[1])
MODELS = ("resnet50", "bert", "llama", "small")
WARM_TASKS = ("warm", "dynamic", "strict", "core", "pte", "save", "load")
Task = Callable[[], Any]


# ----------------------------------------------------------------------- within a measured process


def make_llama() -> tuple[Any, tuple[Any, ...], Any]:
    """A small Llama of transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), (torch.randint(0, 64, (2, 8)),), ({0: "b", 1: "s"},)


def make_model(name: str) -> tuple[Any, tuple[Any, ...], Any]:
    """A model, the example call, and which dimensions vary."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "llama":
        return make_llama()
    if name == "small":
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))
        return model.eval(), (torch.randn(2, 16),), ({0: "b"},)
    from examples.models import MODELS as BUNDLED
    from examples.models.bert import Bert, Config
    from examples.models.resnet import ResNet

    # Of full depth and thin: bytes of weights are no part of what is asked.
    deep: dict[str, Callable[[], nn.Module]] = {
        "resnet50": lambda: ResNet(depths=(3, 4, 6, 3), width=8, classes=10),
        "bert": lambda: Bert(Config(vocabulary=100, width=48, depth=12, heads=4, longest=64)),
    }
    example = BUNDLED[name]
    return deep.get(name, example.tiny)().eval(), example.tiny_inputs(), example.dynamic


def make_tasks(name: str) -> dict[str, Task]:
    import lostwax

    model, args, varying = make_model(name)
    shapes = tuple(dict.fromkeys(dims, lostwax.Dim.AUTO) for dims in varying)
    program: Any = lostwax.export(model, args)
    file = io.BytesIO()
    lostwax.save(program, file)

    def load() -> Any:
        file.seek(0)
        return lostwax.load(file)

    return {
        "warm": lambda: lostwax.export(model, args),
        "dynamic": lambda: lostwax.export(model, args, dynamic_shapes=shapes),
        "strict": lambda: lostwax.export(model, args, strict=True),
        "core": lambda: program.run_decompositions(),
        "pte": lambda: program.to_edge().to_executable().buffer,
        "save": lambda: lostwax.save(program, io.BytesIO()),
        "load": load,
    }


def take_cold(name: str) -> float:
    model, args, _ = make_model(name)
    start = time.process_time()
    import lostwax

    lostwax.export(model, args)
    return time.process_time() - start


def serve(name: str) -> None:
    """Answers each line, the name of a task, with the seconds that it took."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if name.startswith("cold:"):
        print(take_cold(name.removeprefix("cold:")), flush=True)
        return
    from bench.clock import processor_seconds

    tasks = make_tasks(name)
    print("ready", flush=True)
    for line in sys.stdin:
        print(processor_seconds(tasks[line.strip()]), flush=True)


# ------------------------------------------------------------------------------- the three in turn


class Server:
    """A process that does tasks with the package of a folder."""

    def __init__(self, folder: str, name: str, bytecode: str) -> None:
        code = f"import sys; sys.path.insert(0, {folder!r}); import runpy; "
        code += f"sys.argv = ['versions', '--serve', {name!r}]; "
        code += f"runpy.run_path({__file__!r}, run_name='__main__')"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=folder,
            env=os.environ
            | {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
            | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"a measured process ended with {self.process.wait()}")
        return answer

    def ask(self, task: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        return float(self.read())

    def close(self) -> None:
        self.process.communicate()


def take_turns(
    folders: list[str], model: str, tasks: list[str], rounds: int, bytecode: str
) -> Iterator[Any]:
    servers = [Server(folder, model, bytecode) for folder in folders]
    for server in servers:
        server.read()
    for _ in range(rounds):
        for task in tasks:
            for side, server in enumerate(servers):
                yield task, side, server.ask(task)
    for server in servers:
        server.close()


def take_colds(folders: list[str], model: str, rounds: int, bytecode: str) -> Iterator[Any]:
    for _ in range(rounds):
        for side, folder in enumerate(folders):
            server = Server(folder, f"cold:{model}", bytecode)
            yield "cold", side, float(server.read())
            server.close()


def find_least(taken: Iterable[tuple[str, int, float]]) -> dict[str, list[float]]:
    least: dict[str, list[float]] = defaultdict(lambda: [float("inf")] * 3)
    for task, side, seconds in taken:
        least[task][side] = min(least[task][side], seconds)
    return least


def measure(options: argparse.Namespace, model: str, bytecode: str) -> dict[str, list[float]]:
    folders = [options.before, options.before, HERE]
    tasks = [task for task in options.tasks if task != "cold"]

    def generations() -> Iterator[Any]:
        for turn in range(options.generations):
            order = folders if turn % 2 else [folders[2], *folders[:2]]
            for task, side, seconds in take_turns(order, model, tasks, options.rounds, bytecode):
                yield task, side if turn % 2 else (2, 0, 1)[side], seconds
        if "cold" in options.tasks:
            yield from take_colds(folders, model, options.cold_rounds, bytecode)

    return find_least(generations())


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.versions")
    parser.add_argument("before", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--tasks", nargs="+", default=[*WARM_TASKS, "cold"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cold-rounds", type=int, default=10)
    parser.add_argument("--generations", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    is_missed = False
    bytecode = tempfile.mkdtemp(prefix="lostwax-bytecode-")  # as pip leaves it
    for model in options.models:
        least = measure(options, model, bytecode)
        if options.json:
            print(json.dumps({model: least}), flush=True)
        for task, (before, again, now) in least.items():
            ratio = now / min(before, again)
            is_missed |= ratio > BAR
            alike = abs(again / before - 1)
            print(
                f"{model:<10}{task:<9}{min(before, again) * 1e3:>9.2f} ms{now * 1e3:>9.2f} ms"
                f"{ratio:>7.3f}   like and like ±{alike:.1%}",
                flush=True,
            )
    return int(is_missed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        sys.exit(main())
