"""Control flow while a program runs: Python's own `if` and loops over the sub-graphs.

torch's operators trace a backward of each sub-graph in each call that needs gradients; here
autograd sees what is computed, and nothing else. Where somebody records what happens (a capture,
torch.export, torch.compile), the operators themselves are called, so that the control flow stays.
Must not change the program: the graph that runs is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from lostwax.fake import FakeTensorMode
from lostwax.fake.tensor import storage_key
from lostwax.ir.graph.control import describe_call
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.lookup import graph_modules
from lostwax.ir.run.plain_functions import find_plain_function

_operators: Any = torch.ops.higher_order
_C: Any = torch._C


def is_recorded() -> bool:
    """Does somebody record the calls of operators, who must see those with sub-graphs whole? A
    capture says that it is exporting; torch's own modes have a key. Other modes (of the user, or
    one that counts) see what the sub-graphs compute, and so do our fakes."""
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return True
    if torch._ops._get_current_dispatch_mode_pre_dispatch() is not None:
        return True
    modes = _get_current_dispatch_mode_stack() if _C._len_torch_dispatch_stack() else ()
    return any(hasattr(m, "_mode_key") and not isinstance(m, FakeTensorMode) for m in modes)


def run_cond(
    predicate: Any, on_true: GraphModule, on_false: GraphModule, operands: Sequence[Any]
) -> Any:
    if is_recorded() or _is_batched(predicate):
        return _operators.cond(predicate, on_true, on_false, operands)
    branch = on_true if predicate else on_false
    return _give_own_memory(branch.forward(*operands), operands)


def _is_batched(value: Any) -> bool:
    """Does `torch.vmap` run the program for several predicates at once?"""
    return isinstance(value, Tensor) and _C._functorch.is_batchedtensor(value)


def run_while_loop(
    condition: GraphModule, body: GraphModule, carried: Sequence[Any], more: Sequence[Any]
) -> Any:
    if is_recorded():
        return _operators.while_loop(condition, body, tuple(carried), tuple(more))
    values = carried
    while condition.forward(*values, *more):
        values = body.forward(*values, *more)
    return _give_own_memory(tuple(values), (*carried, *more))


def run_map(body: GraphModule, mapped: Sequence[Tensor], more: Sequence[Any]) -> Any:
    if is_recorded():
        return _operators.map_impl(body, mapped, more)
    rows = _rows_of(mapped, "map")
    made = [body.forward(*row, *more) for row in rows]
    return tuple(map(_stack, zip(*made, strict=True)))


def run_scan(
    body: GraphModule, first: Sequence[Tensor], scanned: Sequence[Tensor], more: Sequence[Any]
) -> Any:
    if is_recorded():
        return _operators.scan(body, first, scanned, more)
    count = len(first)
    carried: Sequence[Any] = first
    made = []
    for row in _rows_of(scanned, "scan"):
        results = body.forward(*carried, *row, *more)
        carried = results[:count]
        made.append(results[count:])
    carried = _give_own_memory(tuple(carried), (*first, *more))
    return (*carried, *map(_stack, zip(*made, strict=True)))


def run_associative_scan(body: GraphModule, scanned: Sequence[Tensor], more: Sequence[Any]) -> Any:
    if is_recorded():
        return _operators.associative_scan(body, scanned, more)
    rows = _rows_of(scanned, "associative_scan")
    carried: Sequence[Any] = next(rows)
    made = [carried]
    for row in rows:
        carried = body.forward(*carried, *row, *more)
        made.append(carried)
    return tuple(map(_stack, zip(*made, strict=True)))


def run_pointwise_scan(body: GraphModule, scanned: Sequence[Tensor], more: Sequence[Any]) -> Any:
    """As `run_associative_scan`, for a body that can take many rows at once."""
    if is_recorded():
        return _operators.associative_scan(body, scanned, more)
    made = _scan_in_halves(body.forward, list(scanned), more)
    return _give_own_memory(tuple(made), scanned)


def run_subgraph(body: GraphModule, identifier: Any, *operands: Any) -> Any:
    if is_recorded():
        return _operators.invoke_subgraph(body, identifier, *operands)
    return body.forward(*operands)


def run_under_autocast(
    device: str, dtype: Any, enabled: bool, cache: bool | None, body: GraphModule, *operands: Any
) -> Any:
    with torch.autocast(device, dtype, enabled, cache):
        return body.forward(*operands)


# ----------------------------------------------------------------------------------------- tensors


def _rows_of(tensors: Sequence[Tensor], name: str) -> Iterator[Any]:
    """The rows of tensors, together."""
    length = tensors[0].shape[0]
    if length == 0 or any(t.shape[0] != length for t in tensors):
        sizes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise RuntimeError(
            f"{name} goes over the first dimension, which must be the same and not 0: {sizes}"
        )
    return zip(*(t.unbind(0) for t in tensors), strict=True)


def _stack(values: Sequence[Any]) -> Any:
    return torch.stack(values) if isinstance(values[0], Tensor) else None  # type: ignore[arg-type]


def _scan_in_halves(
    combine: Callable[..., Any], values: list[Tensor], more: Sequence[Any]
) -> list[Tensor]:
    """Combine neighbours, scan the half as many results, and combine these with what lies between:
    a number of calls that grows with the logarithm of the length. The order of the calculations is
    that of torch's own kernel, so that numbers are the same."""
    length = values[0].shape[0]
    if length < 2:
        return values
    pairs = combine(*(v[0 : length - 1 : 2] for v in values), *(v[1::2] for v in values), *more)
    odd = _scan_in_halves(combine, list(pairs), more)
    before = [o[:-1] for o in odd] if length % 2 == 0 else odd
    even = combine(*before, *(v[2::2] for v in values), *more)
    even = [torch.cat([v[:1], e]) for v, e in zip(values, even, strict=True)]
    return [_interleave(e, o) for e, o in zip(even, odd, strict=True)]


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    count = odd.shape[0]
    mixed = torch.stack([even[:count], odd], 1).flatten(0, 1)
    return mixed if even.shape[0] == count else torch.cat([mixed, even[count:]])


def _give_own_memory(results: Any, operands: Sequence[Any]) -> Any:
    """Copy the results that lie in the memory of an operand: what a call returns is its own, so
    that the writes at the end of a program do not reach it."""
    taken = {_memory_of(o) for o in operands if isinstance(o, Tensor)}
    if not isinstance(results, tuple):
        return _copy_if(results, taken)
    return tuple([_copy_if(r, taken) for r in results])


def _copy_if(value: Any, taken: set[Any]) -> Any:
    is_taken = isinstance(value, Tensor) and _memory_of(value) in taken
    return value.clone() if is_taken else value


def _memory_of(value: Tensor) -> int:
    """A number that is equal for tensors that share memory, also inside of `torch.func`."""
    while _C._functorch.is_functorch_wrapped_tensor(value):
        value = _C._functorch.get_unwrapped(value)
    return storage_key(value)


# -------------------------------------------------------------------------------------- the graph


_RUNNERS: dict[str, Callable[..., Any]] = {
    "cond": run_cond,
    "while_loop": run_while_loop,
    "map_impl": run_map,
    "scan": run_scan,
    "associative_scan": run_associative_scan,
    "invoke_subgraph": run_subgraph,
    "wrap_with_autocast": run_under_autocast,
}


def find_runner(node: Node) -> Callable[..., Any] | None:
    """The function that runs this call; None if its operator does."""
    if not isinstance(node.target, HigherOrderOperator):
        return None
    found = _RUNNERS.get(node.target.name())
    if found is run_associative_scan and _is_pointwise(node):
        return run_pointwise_scan
    return found


def _is_pointwise(node: Node) -> bool:
    """Does the sub-graph of a call treat all elements alike? Then it can take many rows at once."""
    call = describe_call(node)
    body = None if call is None else call.bodies[0].find_module()
    if body is None:
        return False
    calls = (n.target for n in body.graph.nodes if n.op == "call_function")
    return all(torch.Tag.pointwise in getattr(target, "tags", ()) for target in calls)


def run_by_python(module: GraphModule) -> GraphModule:
    """Return a graph whose control flow is run by Python: a copy, if it has any."""
    if not module.graph.find_nodes(op="get_attr"):
        return module
    copy, _ = copy_module(module)
    for each in graph_modules(copy):
        for node in each.graph.nodes:
            if node.op == "call_function":
                plain = None if each is copy else find_plain_function(node)
                node.target = find_runner(node) or plain or node.target
        each.recompile()
        _LazyGraphModule.force_recompile(each)  # torch.compile does not see through a lazy one
    return copy
