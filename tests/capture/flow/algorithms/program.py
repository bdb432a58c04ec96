"""Programs that the tests export, each with the calls that take all of its ways.

They are written as one writes PyTorch, and not for lostwax. They stand in files of their own: the
asserts of a test's file are rewritten by pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T", bound=Callable[..., Any])


class Program(NamedTuple):
    name: str
    make: Callable[[], Any]
    """Makes what is exported: a function, or a module."""
    calls: tuple[tuple[Any, ...], ...]
    """The arguments of each call; the first one is what it is exported with."""
    place: str
    """The file of it, as a module."""
    options: dict[str, Any]
    """What the export is told, beside that."""


PROGRAMS: dict[str, Program] = {}


def program(*calls: Any, **options: Any) -> Callable[[T], T]:
    """List a function or a class of modules, with the arguments of calls: each a tuple, or one
    tensor. `options` are those of `lostwax.export`."""

    def add(made: T) -> T:
        name = made.__name__
        assert name not in PROGRAMS, name
        each = tuple(call if isinstance(call, tuple) else (call,) for call in calls)
        is_module = isinstance(made, type) and issubclass(made, nn.Module)
        PROGRAMS[name] = Program(
            name, _seed(made) if is_module else lambda: made, each, made.__module__, options
        )
        return made

    return add


def _seed(kind: Any) -> Callable[[], Any]:
    def make() -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return kind().eval()

    return make


def floats(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def number(value: float) -> Tensor:
    """A tensor without dimensions."""
    return torch.tensor(value)


def draw(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))
