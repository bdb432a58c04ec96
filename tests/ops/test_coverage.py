"""What real models use, and core ATen, has rules of our own: no fall-back serves it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lostwax import ops
from lostwax.fake import FakeTensorMode, fallback
from lostwax.ops.registry import operator
from lostwax.sym import ShapeEnv

assert ops

USED = (Path(__file__).parent / "used_by_models.txt").read_text().split()
"""The overloads that 171 architectures of timm, transformers and torchvision call."""


def core() -> list[str]:
    found = []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            if torch.Tag.core in getattr(packet, overload).tags:
                found.append(f"aten.{name}.{overload}")
    return found


@pytest.mark.parametrize("name", sorted({*USED, *core()}))
def test_has_a_rule(name: str) -> None:
    _, packet, overload = name.split(".")
    func = getattr(getattr(torch.ops.aten, packet), overload)
    record = operator(func)
    typed = record.rule is not None or record.evaluation is not None
    assert typed or fallback.is_composite(func)


def test_questions_about_sizes_are_answered() -> None:
    aten = torch.ops.aten
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(3, 4))
    static = mode.from_tensor(torch.ones(3, 4), static_shapes=True)
    with mode:
        assert aten.sym_size.int(x, 0).node is x.shape[0].node
        assert str(aten.sym_numel.default(x)) == "s0*s1"
        assert aten.sym_stride.int(x, 1) == 1
        assert aten.sym_storage_offset.default(x) == 0
        assert aten.sym_size.int(static, 1) == 4
        aten._assert_tensor_metadata.default(static, dtype=torch.float32)
        aten._assert_async.msg(static.sum() > 0, "positive")
