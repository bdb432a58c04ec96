"""Modules of names alone, for code that imports `lostwax.unflatten` or `lostwax.graph_signature` as
it does of torch.export. Each name loads its layer when it is first used.

Layer 0: imports nothing of lostwax; the face says which names there are, and how they are loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect


class CallableModule(ModuleType):
    """A module that is also a function, and documented as it: Python gives both one name."""

    @property
    def _function(self) -> Any:
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        return inspect.signature(self._function)

    def __getattribute__(self, name: str) -> Any:
        if name == "__doc__":  # (a property of this name would be the class's own)
            return self._function.__doc__
        return super().__getattribute__(name)


class Namespace(ModuleType):
    """A module that has nothing but names."""

    def __init__(self, path: str, names: Sequence[str], find: Callable[[str], Any]) -> None:
        super().__init__(path, f"Names of lostwax, as torch.export's module has them: {path}.")
        self.__all__ = list(names)
        self.__dict__["_find"] = find

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = self.__dict__[name] = self.__dict__["_find"](name)
        return value

    def __dir__(self) -> list[str]:
        return sorted(self.__all__)


class CallableNamespace(Namespace, CallableModule):
    """A module that is also the function of its name: `lostwax.unflatten(program)`."""

    @property
    def _function(self) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])


def make_callable(find: Callable[[str], Any]) -> type[CallableModule]:
    """The class of a module that is also a function of its name; `find` gives the function."""

    class _Callable(CallableModule):
        @property
        def _function(self) -> Any:
            return find(self.__name__.rpartition(".")[2])

    return _Callable


def add_namespaces(
    package: str, names: Mapping[str, Sequence[str]], find: Callable[[str], Any]
) -> None:
    """Make these modules importable; `find` gives what a name stands for."""
    for module, held in names.items():
        kind = CallableNamespace if module in held else Namespace
        path = f"{package}.{module}"
        sys.modules[path] = kind(path, held, find)
