"""Layers with weights of eight bits: fully connected ones and convolutions.

Must not know how they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import size_of
from lostwax.backends.xnnpack.payload import ElementForm
from lostwax.backends.xnnpack.quantized.dynamic import find_floats
from lostwax.backends.xnnpack.quantized.match import match_call
from lostwax.backends.xnnpack.quantized.quantum import Quantum, read_quantum
from lostwax.backends.xnnpack.quantized.weights import Weights, find_bias, write_bias
from lostwax.backends.xnnpack.schema import INT8_BY_ROW, NO_VALUE
from lostwax.backends.xnnpack.writer import PartWriter, Result

MOST = 256.0
"""The products of XNNPACK's layers are integers; those of results are fewer, by less than this."""


@dataclass(frozen=True)
class Layer:
    """What a layer reads and computes, and the numbers of its weights."""

    source: Any
    result: Result
    filter_id: int
    bias_id: int
    more_id: int = NO_VALUE
    """Further weights, whose products are added to the result."""


def write_rows(
    writer: PartWriter, source: Any, weights: Weights | None, bias: torch.Tensor | None, end: Node
) -> Layer | None:
    """The layer whose rows are quantized as it runs, its weights written; None if they are not."""
    floats = find_floats(source)
    if weights is None or floats is None:
        return None
    quantized: Node = source.args[0]
    if not writer.is_there(quantized):
        fields = (("num_nonbatch_dims", 1),)
        rows = writer.new(size_of(floats), ElementForm(INT8_BY_ROW, "PerTokenDynamicQuant", fields))
        writer.add("XNNConvert", input_id=writer.read(floats), output_id=rows)
        writer.see(quantized, rows, False)
        writer.written.add(quantized)
    bias_id = NO_VALUE if bias is None else writer.add_constant(bias)
    result = writer.find_result(end)
    if weights.is_safe:
        return Layer(quantized, result, weights.write_small(writer), bias_id)
    filter_id, more_id = (part.write(writer) for part in weights.split())
    return Layer(quantized, result, filter_id, bias_id, more_id)


def write_weights(
    writer: PartWriter,
    node: Node,
    source: Any,
    weights: Weights | None,
    bias: torch.Tensor | None,
    end: Node | None = None,
) -> Layer | None:
    """The layer in eight bits, its weights written; None if it is computed in float32."""
    if weights is None or weights.group or not weights.is_safe:
        return None
    scales = weights.scales

    def can_hold(given: Sequence[Quantum], made: Quantum) -> bool:
        products = scales.double() * given[0].scale
        if bias is not None and find_bias(bias, products) is None:
            return False
        ratio = products / made.scale
        return bool((ratio < MOST).all()) and bool((ratio >= 2.0**-32).all())

    found = match_call(writer, node, [source], can_hold, end)
    if found is None:
        return None
    (given,), result = found
    products = (scales.double() * read_quantum(source).scale).float()
    integers = None if bias is None else find_bias(bias, products)
    bias_id = NO_VALUE if integers is None else write_bias(writer, integers, products)
    return Layer(given, result, weights.write(writer), bias_id)
