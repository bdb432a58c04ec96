"""Folds batch norms with fixed statistics, which are a scale and a shift, into the weights of the
convolution or linear layer before them.

Must not fold if anybody else reads what the layer returns, or if a weight is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import Node

from lostwax.fake import FakeTensor
from lostwax.ir.graph.retype import same_type
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass
from lostwax.ir.signature import InputKind
from lostwax.ops.registry import aten, operator


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Folds batch norms of a model in evaluation into the convolution or linear layer before them.

    New weights take the places of the old ones, under their names; a weight that others read too
    stays, and the new one gets a name of its own. The state of folded norms is left to
    `UnusedState`. Afterwards the program computes the same up to rounding, and trains differently.
    """

    requires = ("functional",)

    def edit(self, draft: Draft) -> None:
        written = draft.written()
        for node in list(draft.graph.nodes):
            norm = _match_norm(node)
            layer = None if norm is None else _match_layer(norm.input)
            if norm is not None and layer is not None:
                _Fold(draft, written, norm, layer).run()


class Norm(NamedTuple):
    """A batch norm with fixed statistics; weight and bias may be absent."""

    node: Node
    input: Node
    weight: Node | None
    bias: Node | None
    mean: Node
    var: Node
    eps: float
    result: Node


class FoldableLayer(NamedTuple):
    """A convolution or linear layer. `weight` is a placeholder, or a transposed one; `dim` and
    `groups` say where output channels lie in it."""

    node: Node
    weight: Node
    bias: Node | None
    dim: int
    groups: int


_NORMS: dict[Any, bool] = {  # operator → its results are a tuple
    aten._native_batch_norm_legit_no_training.default: True,
    aten._native_batch_norm_legit.default: True,
    aten.native_batch_norm.default: True,
    aten.batch_norm.default: False,
}


def _arguments_by_name(node: Node) -> dict[str, Any]:
    """The arguments of a call by their names in the schema, without those that were left out."""
    names = operator(node.target).argument_names  # type: ignore[arg-type]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _match_norm(node: Node) -> Norm | None:
    if node.target not in _NORMS:
        return None
    given = _arguments_by_name(node)
    mean, var, source = given.get("running_mean"), given.get("running_var"), given["input"]
    if given.get("training") or not isinstance(mean, Node) or not isinstance(var, Node):
        return None
    result = node
    if _NORMS[node.target]:
        if [u.args[1] for u in node.users if u.target is getitem] != [0]:
            return None
        (result,) = node.users
    return Norm(
        node, source, given.get("weight"), given.get("bias"), mean, var, given["eps"], result
    )


_CONVOLUTIONS: dict[Any, bool] = {  # operators that were kept whole → are they transposed?
    aten.conv1d.default: False,
    aten.conv2d.default: False,
    aten.conv3d.default: False,
    aten.conv1d.padding: False,
    aten.conv2d.padding: False,
    aten.conv3d.padding: False,
    aten.conv_transpose1d.default: True,
    aten.conv_transpose2d.input: True,
    aten.conv_transpose3d.input: True,
}


def _match_layer(node: Node) -> FoldableLayer | None:
    """The layer that the norm reads, if only the norm does."""
    if len(node.users) != 1:
        return None
    if node.target is aten.convolution.default or node.target in _CONVOLUTIONS:
        given = _arguments_by_name(node)
        transposed = given.get("transposed", _CONVOLUTIONS.get(node.target, False))
        dim, groups = (1, given.get("groups", 1)) if transposed else (0, 1)
        return FoldableLayer(node, given["weight"], given.get("bias"), dim, groups)
    value = node.meta.get("val")
    if not isinstance(value, FakeTensor) or value.ndim != 2:
        return None
    if node.target is aten.linear.default:
        given = _arguments_by_name(node)
        return FoldableLayer(node, given["weight"], given.get("bias"), 0, 1)
    if node.target is aten.addmm.default and not node.kwargs:
        return FoldableLayer(node, node.args[2], node.args[0], 1, 1)  # type: ignore[arg-type]
    if node.target is aten.mm.default:
        return FoldableLayer(node, node.args[1], None, 1, 1)  # type: ignore[arg-type]
    return None


class _Fold:
    """Folds one norm into one layer."""

    def __init__(self, draft: Draft, written: set[Node], norm: Norm, layer: FoldableLayer) -> None:
        self.draft, self.written = draft, written
        self.norm, self.layer = norm, layer
        self.weight, self.dim = layer.weight, layer.dim
        if _is_transposition(self.weight):
            self.weight, self.dim = self.weight.args[0], 1 - layer.dim  # type: ignore[assignment]

    def run(self) -> None:
        norm, layer = self.norm, self.layer
        state = [self.weight, layer.bias, norm.weight, norm.bias, norm.mean, norm.var]
        tensors = [None if n is None else self._fixed_tensor(n) for n in state]
        if any(t is None and n is not None for n, t in zip(state, tensors, strict=True)):
            return
        if not same_type(layer.node.meta["val"], norm.result.meta["val"]):
            return
        weight, bias, gamma, beta, mean, var = tensors
        assert weight is not None
        assert mean is not None
        assert var is not None
        if bias is not None and bias.ndim != 1:
            return  # an addmm that is no linear layer
        scale = (var.double() + norm.eps).rsqrt()
        scale = scale if gamma is None else scale * gamma.double()
        shift = (-mean.double() if bias is None else bias.double() - mean.double()) * scale
        shift = shift if beta is None else shift + beta.double()
        self._replace(self.weight, self._scale_weight(weight, scale))
        self._replace_bias(shift.to(weight.dtype))
        norm.result.replace_all_uses_with(layer.node)
        self.draft.graph.erase_node(norm.result)
        if norm.result is not norm.node:
            self.draft.graph.erase_node(norm.node)

    def _fixed_tensor(self, node: Node) -> torch.Tensor | None:
        tensor = self.draft.tensor(node) if node not in self.written else None
        is_real = tensor is not None and not isinstance(tensor, FakeTensor)
        return tensor.detach() if is_real and tensor is not None else None

    def _scale_weight(self, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Multiply each output channel by its scale. In a transposed convolution, dimension 1 has
        the channels of a group, dimension 0 the groups."""
        groups = self.layer.groups
        parts = weight.double().reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        shape = [groups] + [1] * weight.ndim
        shape[self.dim + 1] = scale.numel() // groups
        new = (parts * scale.reshape(shape)).reshape(weight.shape).to(weight.dtype)
        if new.stride() == weight.stride():
            return new
        return torch.empty_like(weight).copy_(new)

    def _replace(self, node: Node, new: torch.Tensor) -> None:
        """Replace a placeholder's tensor by `new`, under the same name if nobody else reads it."""
        draft, spec = self.draft, self.draft.inputs[node]
        assert spec.target is not None
        tensor = draft.tensor(node)
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, tensor.requires_grad)
        reader = self.layer.weight if node is self.weight else node
        if len(node.users) == 1 and len(reader.users) == 1:
            others = {s.target for n, s in draft.inputs.items() if n is not node}
            for store in (draft.state_dict, draft.constants):
                for name in [k for k, v in store.items() if v is tensor and k not in others]:
                    store[name] = new
            node.meta["val"] = draft.fake(new)
            return
        added = draft.add(spec.kind, f"{spec.target}_folded", new)
        if reader is not node:  # a transposition that others read too
            with draft.graph.inserting_before(self.layer.node):
                again = draft.graph.node_copy(reader, lambda _: added)
            self.layer.node.replace_input_with(reader, again)
        else:
            self.layer.node.replace_input_with(node, added)

    def _replace_bias(self, shift: torch.Tensor) -> None:
        layer, draft = self.layer, self.draft
        if layer.bias is not None:
            self._replace(layer.bias, shift)
            return
        spec = draft.inputs[self.weight]
        path, _, leaf = (spec.target or "").rpartition(".")
        name = "bias" if leaf == "weight" else f"{leaf}_bias"
        tensor = draft.tensor(self.weight)
        is_parameter = isinstance(tensor, nn.Parameter)
        if is_parameter:
            shift = nn.Parameter(shift, tensor.requires_grad)  # type: ignore[union-attr]
        kind = InputKind.PARAMETER if is_parameter else InputKind.CONSTANT_TENSOR
        bias = draft.add(kind, f"{path}.{name}" if path else name, shift)
        if layer.node.target is aten.mm.default:
            layer.node.target, layer.node.args = aten.addmm.default, (bias, *layer.node.args)
        elif len(layer.node.args) < 3:
            layer.node.kwargs = {**layer.node.kwargs, "bias": bias}
        else:
            layer.node.args = (*layer.node.args[:2], bias, *layer.node.args[3:])


def _is_transposition(node: Node) -> bool:
    if node.target is aten.t.default:
        return True
    return node.target is aten.permute.default and list(node.args[1]) == [1, 0]  # type: ignore[arg-type]
