"""Makes the module of a graph, fast: a program with control flow has hundreds of them.

FX looks at every node for what it reads, and sets attributes one by one: four times the cost. This
is the only file that knows how FX keeps a module's attributes. Must not know what the graphs mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import fx, nn
from torch.fx._lazy_graph_module import _LazyGraphModule


class ReadableModule(_LazyGraphModule):
    """A graph module whose `forward` is generated when it is first called, and whose text reads as
    torch's own: FX writes plain types for torch's fakes alone."""

    def print_readable(self, print_output: bool = True, *args: Any, **options: Any) -> str:
        """Return the code with types and places, and print it."""
        text = super().print_readable(False, *args, **options)
        text = _NAMED_TYPE.sub(r': "\1"', text)
        if print_output:
            print(text)  # noqa: T201
        return text


_NAMED_TYPE = re.compile(r': "FakeTensor\(([^"]*)\)"')


def make_graph_module(children: Mapping[str, nn.Module], graph: fx.Graph) -> fx.GraphModule:
    """The module of a graph and of the sub-graphs that it reads, by their names, which have no
    dots. Its `forward` is generated when it is first called."""
    cls: Any = type("GraphModule", (ReadableModule,), _NAMESPACE.copy())
    made: Any = object.__new__(cls)
    attributes = _TEMPLATE.copy()
    for name, make_container in _CONTAINERS:
        attributes[name] = make_container()
    attributes["_modules"].update(children)
    attributes["_graph"] = graph
    object.__setattr__(made, "__dict__", attributes)  # at once: one by one would cost more
    graph.owning_module = made
    return made  # type: ignore[no-any-return]


_LIKE: Any = ReadableModule({}, fx.Graph())
_TEMPLATE: dict[str, Any] = {**vars(_LIKE), "_graph": None}
_CONTAINERS = [(name, type(value)) for name, value in _TEMPLATE.items() if hasattr(value, "clear")]
_NAMESPACE = {
    "__module__": type(_LIKE).__module__,
    "__qualname__": type(_LIKE).__qualname__,
    "forward": _LazyGraphModule._lazy_forward,
}
"""Each module has a class of its own, on which its `forward` will be: FX knows it by this name."""
