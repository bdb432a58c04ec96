"""Batch norms that write to their buffers, in a program of torch's: the form in which
`torch.export` leaves them.

A program of ours computes new statistics and writes them at the end. Autograd refuses that where it
runs a program of torch's as it is (the statistics that it saved have changed), and training with
quantization looks for `batch_norm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

if TYPE_CHECKING:
    import torch.export

_FUNCTIONAL = torch.ops.aten._native_batch_norm_legit_functional.default
_STATISTICS = 3, 4
"""Mean and variance among the arguments, and the new ones among the results."""


def restore_batch_norms(program: torch.export.ExportedProgram) -> None:
    """Write `aten.batch_norm` where new statistics replace the old ones. Where that cannot be,
    copies of the old ones are read, which stay what they are until the backward."""
    from torch._export.verifier import load_verifier

    graph = program.graph
    left = graph.find_nodes(op="call_function", target=_FUNCTIONAL)
    if not left:
        return
    signature = program.graph_signature
    places = {buffer: name for name, buffer in signature.inputs_to_buffers.items()}
    written = {made: places[buffer] for made, buffer in signature.buffers_to_mutate.items()}
    written |= signature.user_inputs_to_mutate
    (out,) = graph.find_nodes(op="output")
    while left:
        call = left.pop(0)
        old = [call.args[i] for i in _STATISTICS]
        (calls, mean), (others, var) = (
            _follow(each, i, out) for each, i in zip(old, _STATISTICS, strict=True)
        )
        targets = [written.get(each.name) for each in (mean, var)]
        if not calls or calls != others or targets != [each.name for each in old]:
            for i in _STATISTICS:
                _read_copy(call, i)
            continue
        _drop_outputs(out, signature, (mean, var))
        for each in calls:
            _restore(each, old)
        left = [each for each in left if each not in calls]
    for counter in graph.find_nodes(op="placeholder"):
        steps, last = _follow_counter(counter, out)
        if steps and written.get(last.name) == counter.name:
            _drop_outputs(out, signature, (last,))
            for each in steps:
                each.target, each.args = torch.ops.aten.add_.Tensor, (counter, 1)
    program._verifiers = [load_verifier("TRAINING")]  # the others want functional operators
    program.graph_module.recompile()


def _drop_outputs(out: Node, signature: Any, dropped: tuple[Node, ...]) -> None:
    results: Any = out.args[0]
    kept = [i for i, each in enumerate(results) if each not in dropped]
    out.args = (tuple(results[i] for i in kept),)
    signature.output_specs[:] = [signature.output_specs[i] for i in kept]


def _follow_counter(counter: Node, out: Node) -> tuple[list[Node], Node]:
    """The nodes that add one to a counter of calls, which nothing else reads, and the last one."""
    steps: list[Node] = []
    while len(counter.users) == 1 and out not in counter.users:
        (step,) = counter.users
        if step.target is not torch.ops.aten.add.Tensor or step.args != (counter, 1):
            return [], counter
        steps.append(step)
        counter = step
    results: Any = out.args[0]
    is_last = [*counter.users] == [out] and results.count(counter) == 1
    is_count = not counter.meta["val"].dtype.is_floating_point if steps else False
    return (steps if is_last and is_count else []), counter


def _follow(statistics: Any, position: int, out: Node) -> tuple[list[Node], Any]:
    """The calls that make new statistics of these, one after the other, and the last statistics. No
    calls if they cannot write: somebody reads afterwards what was there before."""
    calls: list[Node] = []
    while out not in statistics.users:
        nexts = [user for user in statistics.users if user.target is _FUNCTIONAL]
        if len(nexts) != 1 or nexts[0].args.count(statistics) != 1:
            return [], statistics
        call = nexts[0]
        taken = {user.args[1]: user for user in call.users}
        if not {0, position} <= taken.keys() <= {0, *_STATISTICS}:
            return [], statistics  # a call whose result nobody reads would be taken for dead
        if any(user >= call or _may_view(user) for user in statistics.users if user is not call):
            return [], statistics
        calls.append(call)
        statistics = taken[position]
    results: Any = out.args[0]
    return (calls if results.count(statistics) == 1 else []), statistics


def _may_view(node: Node) -> bool:
    """Can the result share memory with an argument?"""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(each.alias_info is not None for each in schema.returns)


def _restore(call: Node, statistics: list[Node]) -> None:
    """Let the node that takes out the result compute it: the signatures know its name."""
    x, weight, bias, _, _, *how = call.args
    taken = {user.args[1]: user for user in call.users}
    for i, each in zip(_STATISTICS, statistics, strict=True):
        if i in taken:
            taken[i].replace_all_uses_with(each)
            call.graph.erase_node(taken[i])
    result = taken[0]
    result.target = torch.ops.aten.batch_norm.default
    result.args = (x, weight, bias, *statistics, *how, torch.backends.cudnn.enabled)
    result.meta = {**call.meta, "val": result.meta["val"]}
    call.graph.erase_node(call)


def _read_copy(call: Node, position: int) -> None:
    statistics = call.args[position]
    if isinstance(statistics, Node) and statistics.op == "placeholder":
        with call.graph.inserting_before(call):
            copy = call.graph.call_function(torch.ops.aten.clone.default, (statistics,))
        copy.meta = {**call.meta, "val": statistics.meta["val"].clone()}
        call.update_arg(position, copy)
