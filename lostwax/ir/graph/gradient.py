"""`with_gradient`: values whose gradient is computed by a graph of its own.

A program differentiates what it computes; where the original says otherwise (`autograd.Function`, a
write under `no_grad`), a call of this operator says so:

    outputs = with_gradient(backward, outputs, inputs, saved)

returns the `outputs` unchanged. Their gradient with respect to the `inputs` is what the sub-graph
`backward` computes from the gradients of the outputs and the `saved` values. A consumer that needs
no gradients may replace the call by its outputs (`remove_gradients`). Must not know of capture.
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
        # If the backward reads an output, save the result instead, which can be differentiated.
        own = {id(t): result for t, result in zip(outputs, results, strict=True)}
        ctx.save_for_backward(*(own.get(id(t), t) for t in saved))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        # The backward graph may view the gradients: lay them out as the outputs, as at capture.
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
    """If `with_gradient` passes this node's gradient unchanged to one of its inputs, return that
    input; else None."""
    made: Any = node.args[0] if node.target is getitem else None
    if made is None or made.target is not with_gradient:
        return None
    body: Any = getattr(owner, made.args[0].target)
    given, (returned,) = next(iter(body.graph.nodes)), body.graph.output_node().args
    return made.args[2][0] if tuple(returned) == (given,) else None


def remove_gradients(graph: Graph) -> bool:
    """Replace each `with_gradient` by its outputs: the program computes the same, and
    differentiates what it computes. Return whether there was any."""
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
