"""Hooks of modules that ask data, and return None where they keep what there is.

(pytest changes the code of files with tests where they assert: these are not in one.)
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + 1


def doubles(module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
    if out.sum() > 0:
        return out * 2
    return None


def writes_or_doubles(module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
    if out.sum() > 0:
        out.add_(args[0].sum())
    elif out.sum() > -2:
        return out * 2
    return None


def leaves_early(module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
    for limit in (1, -1):
        if out.sum() > limit:
            return out + limit
    return None


def scales(module: nn.Module, args: Any) -> Any:
    (x,) = args
    if x.sum() > 2:
        return x * 3
    if x.sum() > 0:
        return (x * 2,)
    return None


def scales_with_names(module: nn.Module, args: Any, kwargs: Any) -> Any:
    if args[0].sum() > 0:
        return (args[0] * 3,), kwargs
    return None


def sees_names(module: nn.Module, args: Any, kwargs: Any, out: Tensor) -> Tensor | None:
    return out - 1 if out.sum() > 0 else None


def adds(number: float, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
    return out + number if out[0, 0] > 0 else None


class Limits:
    limit = 0.5

    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        return self.above(module, args, out)

    def above(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        if out.max() > self.limit:
            return out.clamp(max=self.limit)
        return None


class LimitsItself:
    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        if out.max() > 0.5:
            return out.clamp(max=0.5)
        return None


def hook_after(hook: Any, **options: Any) -> Net:
    net = Net()
    net.linear.register_forward_hook(hook, **options)
    return net


def hook_before(hook: Any, **options: Any) -> Net:
    net = Net()
    net.register_forward_pre_hook(hook, **options)
    return net


def make_modules() -> dict[str, Net]:
    torch.manual_seed(0)
    both = hook_before(scales)
    both.register_forward_hook(doubles)
    both.linear.register_forward_hook(leaves_early)
    return {
        "after": hook_after(doubles),
        "after, writing": hook_after(writes_or_doubles),
        "after, from a loop": hook_after(leaves_early),
        "after, a lambda": hook_after(lambda m, args, out: out * 2 if out.sum() > 0 else None),
        "after, with arguments by name": hook_after(sees_names, with_kwargs=True),
        "after, always": hook_after(doubles, always_call=True),
        "after, a part": hook_after(partial(adds, 2.0)),
        "after, a method": hook_after(Limits().above),
        "after, an object": hook_after(LimitsItself()),
        "before": hook_before(scales),
        "before, with arguments by name": hook_before(scales_with_names, with_kwargs=True),
        "before and after": both,
    }


class Absent(nn.Module):
    """Its `forward` may return None, which is no hook's."""

    def forward(self, x: Tensor) -> Tensor | None:
        return x + 1 if x.sum() > 0 else None


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Absent()
        self.inner.register_forward_pre_hook(scales)

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        return x if y is None else y


def make_refused() -> dict[str, nn.Module]:
    return {"by another function": hook_after(Limits()), "forward": Around()}
