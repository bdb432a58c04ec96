"""The largest batch that fits in N GB, found without a byte of it: training steps on fake tensors.

    python -m examples.largest_batch --model resnet50 --memory 16 --device cuda

A step is forward, backward and the gradients it leaves; the memory of a step is the most that its
tensors hold at one time. What the kernels borrow for themselves and what the allocator wastes is
not counted: leave it some room.
"""

from __future__ import annotations

import argparse
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from examples.models import MODELS
from lostwax import FakeTensor, FakeTensorMode

GB = 1024**3


def storage_of(tensor: Tensor) -> Any:
    return tensor.fake_storage if isinstance(tensor, FakeTensor) else tensor.untyped_storage()


def bytes_of(storage: Any) -> int:
    nbytes = storage.nbytes
    return nbytes() if callable(nbytes) else nbytes


class PeakMemory(TorchDispatchMode):
    """Follows every storage that an operator makes, from its birth to its end.

    Views share a storage and count once; a tensor that autograd keeps for the backward pass keeps
    its storage alive. Works on fake tensors and on real ones alike.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.follow(storage_of(leaf))
        return result

    def follow(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = bytes_of(storage)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._ended, size)

    def _ended(self, size: int) -> None:
        self.live -= size


def batch_of(tensor: Tensor, size: int) -> Tensor:
    """As many copies of the first of a batch."""
    return tensor[:1].repeat(size, *(1 for _ in tensor.shape[1:]))


def peak_bytes(
    build: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]], batch: int
) -> int:
    """The most that one training step holds at one time, the model's own weights included."""
    with PeakMemory() as memory:
        model = build()
        outputs = model(*(batch_of(tensor, batch) for tensor in inputs()))
        outputs.mean().backward()
    return memory.peak


def largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, 0 if none does; what fits a number fits every smaller one."""
    if not fits(1):
        return 0
    good = 1
    while fits(2 * good):
        good *= 2
    bad = 2 * good
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.largest_batch", description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="resnet50")
    parser.add_argument("--memory", type=float, default=16, help="in GB")
    parser.add_argument("--device", default="cuda", help="need not exist on this machine")
    options = parser.parse_args()

    example = MODELS[options.model]

    def fits(batch: int) -> bool:
        with FakeTensorMode(), torch.device(options.device):
            peak = peak_bytes(example.full, example.full_inputs, batch)
        print(f"  a batch of {batch:>5} takes {peak / GB:7.2f} GB")
        return peak <= options.memory * GB

    print(f"training {options.model} in {options.memory:g} GB of {options.device}:")
    print(f"the largest batch is {largest(fits)}")


if __name__ == "__main__":
    main()
