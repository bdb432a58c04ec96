"""`dynamic_shapes` as data and back, beside torch's functions for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.export
from torch import Tensor, nn
from torch._export.serde.dynamic_shapes import _dump_dynamic_shapes, _load_dynamic_shapes

import lostwax
from lostwax import Dim
from lostwax.dynamic_shapes import dump_dynamic_shapes, load_dynamic_shapes
from lostwax.errors import DynamicShapesError


class Sum(nn.Module):
    def forward(self, x: Tensor, more: dict[str, Tensor], *rest: Tensor, scale: Any = 1) -> Any:
        return [each * 2 for each in (x, *more.values(), *rest)]


ARGS = (torch.ones(4, 6), {"a": torch.ones(5, 4)}, torch.ones(8, 3), torch.ones(2))
N, H = Dim("n", min=2, max=64), Dim("h")
COLLECTED = lostwax.ShapesCollection()
COLLECTED[ARGS[0]] = {0: N}
SPECS: dict[str, Any] = {
    "dims": {"x": {0: N, 1: 2 * H}, "more": {"a": (N + 1, None)}, "rest": ((2 * N, None), None)},
    "by place": ({0: N}, {"a": {1: N}}, ({0: 2 * N}, None)),
    "hints": {
        "x": {0: Dim.AUTO, 1: Dim.DYNAMIC(min=2, max=9)},
        "more": {"a": [Dim.STATIC, Dim.DYNAMIC(max=9)]},
        "rest": ({0: Dim.AUTO(min=3)}, None),
    },
    "collection": COLLECTED,
    "torch's": {"x": {0: torch.export.Dim("n", max=64)}, "more": None, "rest": (None, None)},
    "nothing": None,
}


def sizes(side: Any, shapes: Any, args: Any = ARGS) -> list[str]:
    program = side.export(Sum(), args, dynamic_shapes=shapes)
    vals = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    ranges = [str(each) for each in program.range_constraints.values()]
    return [*(str(tuple(v.shape)) for v in vals if isinstance(v, Tensor)), *ranges]


@pytest.mark.parametrize("name", SPECS)
def test_what_is_dumped_is_loaded_again(name: str) -> None:
    dumped = json.loads(json.dumps(dump_dynamic_shapes(SPECS[name], Sum(), ARGS)))
    loaded = load_dynamic_shapes(dumped)
    assert sizes(lostwax, loaded) == sizes(lostwax, SPECS[name])
    assert dump_dynamic_shapes(loaded, Sum(), ARGS) == dump_dynamic_shapes(SPECS[name], Sum(), ARGS)


class Two(nn.Module):
    def forward(self, x: Tensor, y: dict[str, Tensor]) -> Tensor:
        return x.sum() + y["a"].sum()


def test_torch_reads_ours_and_we_read_torch_s() -> None:
    args = ARGS[:2]
    ours = {"x": {0: N, 1: 2 * Dim("h", max=99)}, "y": {"a": {0: N + 1, 1: Dim.AUTO}}}
    n = torch.export.Dim("n", min=2, max=64)
    h = torch.export.Dim("h", min=0, max=99)
    theirs = {"x": {0: n, 1: 2 * h}, "y": {"a": {0: n + 1, 1: torch.export.Dim.AUTO}}}
    dumped = dump_dynamic_shapes(ours, Two(), args)
    peer: Any = _dump_dynamic_shapes(theirs, args, to_dict=True)
    assert dumped["dims"] == peer["dims"]
    assert dumped["dynamic_shapes"]["x"] == peer["dynamic_shapes"][0]
    read: Any = _load_dynamic_shapes(dumped, from_dict=True)
    torch.export.export(Two(), args, dynamic_shapes=read)
    wanted = lostwax.export(Two(), args, dynamic_shapes=ours)
    for given in (peer, json.loads(json.dumps(peer))):
        made = lostwax.export(Two(), args, dynamic_shapes=load_dynamic_shapes(given))
        assert str(made.graph) == str(wanted.graph)
        assert made.range_constraints == wanted.range_constraints


BROKEN: dict[str, tuple[Any, str]] = {
    "no dims": ({"dynamic_shapes": None}, r"it is damaged \(KeyError: 'dims'\)"),
    "no dict": ([], r"it is damaged \(TypeError"),
    "unknown": ({"dynamic_shapes": ["m"], "dims": {}}, r"'m' is no size of its dims, .* none"),
    "code": ({"dynamic_shapes": ["exit()"], "dims": {}}, r"'exit\(\)' is no size of its dims"),
    "name": ({"dynamic_shapes": [], "dims": {"1": {"min": 0, "max": 1}}}, "Python identifier"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_damaged_is_refused(case: str) -> None:
    given, text = BROKEN[case]
    with pytest.raises(DynamicShapesError, match=text):
        load_dynamic_shapes(given)
