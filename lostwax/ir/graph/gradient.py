"""`with_gradient`: values whose gradient is computed by a graph of its own.

A program differentiates what it computes; where the original says otherwise (`autograd.Function`, a
write under `no_grad`), a call of this operator says so:

    outputs = with_gradient(backward, outputs, inputs, saved)

gives the `outputs` as they are. Their gradient with respect to the `inputs` is what the sub-graph
`backward` makes of the gradients of the outputs and the `saved` values. Who needs no gradients may
put the outputs in its place (`remove_gradients`). Must not know of capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import Graph, Node
from torch.nn import Module


class WithGradient(HigherOrderOperator):
    """The operator; `torch.ops.higher_order.with_gradient`."""

    def __init__(self) -> None:
        super().__init__("with_gradient", cacheable=False)  # type: ignore[no-untyped-call]

    def __call__(
        self,
        backward: Any,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        saved: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        if not torch.is_grad_enabled():
            return tuple(outputs)
        counts = (len(outputs), len(inputs))
        return tuple(_AttachBackward.apply(backward, counts, *outputs, *inputs, *saved))  # type: ignore[no-untyped-call]


class _AttachBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, backward: Any, counts: tuple[int, int], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        outputs, saved = tensors[: counts[0]], tensors[sum(counts) :]
        ctx.backward, ctx.counts = backward, counts
        ctx.strides = [t.stride() for t in outputs]
        results = tuple(t.detach() for t in outputs)
        # An output that the backward reads is the result itself: it can be differentiated again.
        own = {id(t): result for t, result in zip(outputs, results, strict=True)}
        ctx.save_for_backward(*(own.get(id(t), t) for t in saved))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        # As at capture they have the layout of the outputs: the graph may view them.
        laid_out = [_lay_out(g, s) for g, s in zip(grads, ctx.strides, strict=True)]
        found = ctx.backward(*laid_out, *ctx.saved_tensors)
        outputs, _ = ctx.counts
        return None, None, *[None] * outputs, *found, *[None] * len(ctx.saved_tensors)


def _lay_out(t: Tensor, stride: tuple[int, ...]) -> Tensor:
    if t.stride() == stride:
        return t
    return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t)


with_gradient = WithGradient()


def gradient_source(node: Node, owner: Module) -> Node | None:
    """The value whose gradient this one has, with other values; None if it has another."""
    made: Any = node.args[0] if node.target is getitem else None
    if made is None or made.target is not with_gradient:
        return None
    body: Any = getattr(owner, made.args[0].target)
    given, (returned,) = next(iter(body.graph.nodes)), body.graph.output_node().args
    return made.args[2][0] if tuple(returned) == (given,) else None


def remove_gradients(graph: Graph) -> bool:
    """Put the outputs in the place of each `with_gradient`: the program computes the same, and
    differentiates what it computes. Whether there was any."""
    found = list(graph.find_nodes(op="call_function", target=with_gradient))
    for node in found:
        outputs: Any = node.args[1]
        for user in list(node.users):
            assert user.target is getitem
            user.replace_all_uses_with(outputs[user.args[1]])
            graph.erase_node(user)
        body: Any = node.args[0]
        graph.erase_node(node)
        if not body.users:
            graph.erase_node(body)
    return bool(found)
