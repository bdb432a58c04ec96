"""Exports the architectures of the sweep from tensors on a device that this machine does not have.

    python -m sweep.fakes [--device cuda] [--only resnet18 Llama ...] [--part 2/8]

Each is built on the CPU; fakes on the device take the places of its tensors, as in
`model.to("cuda")`. It is exported for evaluation, for training, and with sizes that vary. The
program is valid, refused only where that of the CPU is, and all in it is on that device, but for
what the model's own code makes on the CPU and does not return. Must not run anything.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from lostwax import ExportedProgram, export
from lostwax.errors import LostwaxError
from lostwax.fake import FakeTensorMode
from lostwax.identity import ByIdentity
from sweep.__main__ import chosen
from sweep.architectures import Architecture, build
from sweep.dynamic import dynamic_shapes
from sweep.libraries import load
from sweep.setting import Setting


class Mover:
    """Makes fakes on a device; the same tensor gives the same fake."""

    def __init__(self, device: str) -> None:
        self.mode, self.device = FakeTensorMode(), device
        self.done = ByIdentity[Tensor, Tensor]()

    def move(self, tensor: Tensor) -> Tensor:
        if tensor not in self.done:
            fake = self.mode.from_tensor(tensor.detach())
            with self.mode:  # no driver is asked there
                fake = fake.to(self.device)
            is_parameter = isinstance(tensor, nn.Parameter)
            made = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
            self.done[tensor] = made
        return self.done[tensor]

    def move_module(self, module: nn.Module) -> None:
        for each in module.modules():
            for table in (each._parameters, each._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = self.move(tensor)  # type: ignore[assignment]


def export_all(architecture: Architecture, model: nn.Module, call: Any) -> Iterator[Any]:
    """Each way to export a model, with its name: the program, or what refuses it."""
    args, kwargs = call
    spec = dynamic_shapes(kwargs, True, architecture.least)
    ways = (("eval", False, None), ("train", True, None), ("any sizes", False, spec))
    for way, training, spec in ways:
        model.train(training)
        try:
            yield way, export(model, args, kwargs, dynamic_shapes=spec)
        except LostwaxError as error:
            yield way, str(error).splitlines()[0]


def find_devices(program: ExportedProgram) -> dict[str, str]:
    """The devices of a program's values and those that its calls name, each with a node."""
    found: dict[str, str] = {}
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            for leaf in pytree.tree_leaves((node.meta.get("val"), node.args, node.kwargs)):
                if isinstance(leaf, (Tensor, torch.device)):
                    device = leaf.device if isinstance(leaf, Tensor) else leaf
                    found.setdefault(device.type, f"{node.name}: {node.target}")
    return found


def sweep(architecture: Architecture, timm: Any, transformers: Any, device: str) -> list[str]:
    """What is wrong."""
    torch.manual_seed(0)
    setting = Setting()
    model = build(architecture, timm, transformers).to(setting.find_dtype(architecture))
    call = setting.make_example(architecture)
    of_cpu = dict(export_all(architecture, model, call))
    mover = Mover(device)
    mover.move_module(model)
    call = pytree.tree_map_only(Tensor, mover.move, call)
    return [
        f"{architecture.name}, {way}: {text}"
        for way, program in export_all(architecture, model, call)
        for text in judge(program, of_cpu[way], device)
    ]


def judge(program: Any, of_cpu: Any, device: str) -> Iterator[str]:
    if isinstance(program, str) or isinstance(of_cpu, str):
        if type(program) is not type(of_cpu):
            yield f"on {device} {program!s:.200}; on the CPU {of_cpu!s:.200}"
        return
    program.validate()
    own = torch.device(device).type
    for where, node in find_devices(program).items():
        if where not in (own, "cpu"):
            yield f"{node} is on {where}"
    for node in program.graph.output_node().all_input_nodes:
        value = node.meta["val"]
        if isinstance(value, Tensor) and value.device.type != own:
            yield f"the result {node} is on {value.device}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sweep.fakes", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="parts of architectures' names")
    parser.add_argument("--library", choices=("timm", "transformers"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", default="1/1", help="2/8: of each eight architectures the second")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    timm, transformers = load()
    architectures, wrong = chosen(options.only, options.library, options.part), 0
    for architecture in architectures:
        found = sweep(architecture, timm, transformers, options.device)
        wrong += bool(found)
        print(*found, sep="\n", end="\n" if found else "", flush=True)
    print(f"{len(architectures) - wrong} of {len(architectures)} are all on {options.device}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
