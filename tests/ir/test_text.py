"""What a program looks like."""

from __future__ import annotations

import operator
import re

import pytest
import torch
from torch import fx, nn

from lostwax.fake.symbolic.node import wrap
from lostwax.ir.text import argument_text, dtype_text, graph_text, source_text, target_text
from tests.ir.build import Builder

aten = torch.ops.aten


def stack(*frames: tuple[str, int, str, str]) -> str:
    return "".join(f'  File "{f}", line {n}, in {g}\n    {code}\n' for f, n, g, code in frames)


def document_program():
    """The first program of the documents."""
    b = Builder()
    x, y = b.input("x", torch.zeros(10, 10)), b.input("y", torch.zeros(10, 10))
    b.stack = stack(("/home/me/mod.py", 3, "forward", "a = torch.sin(x)"))
    sin = b.call(aten.sin.default, x)
    b.stack = stack(("/home/me/mod.py", 4, "forward", "b = torch.cos(y)"))
    cos = b.call(aten.cos.default, y)
    b.stack = stack(("/home/me/mod.py", 5, "forward", "return a + b"))
    return b.program(b.call(aten.add.Tensor, sin, cos))


DOCUMENT = """\
ExportedProgram:
    class GraphModule(torch.nn.Module):
        def forward(self, x: "f32[10, 10]", y: "f32[10, 10]"):
            # File: /home/me/mod.py:3 in forward, code: a = torch.sin(x)
            sin_default: "f32[10, 10]" = torch.ops.aten.sin.default(x)

            # File: /home/me/mod.py:4 in forward, code: b = torch.cos(y)
            cos_default: "f32[10, 10]" = torch.ops.aten.cos.default(y)

            # File: /home/me/mod.py:5 in forward, code: return a + b
            add_tensor: "f32[10, 10]" = torch.ops.aten.add.Tensor(sin_default, cos_default)
            return (add_tensor,)

    Graph signature: ExportGraphSignature(
        input_specs=[
            InputSpec(kind=<InputKind.USER_INPUT: 1>, arg=TensorArgument(name='x'), target=None, \
persistent=None),
            InputSpec(kind=<InputKind.USER_INPUT: 1>, arg=TensorArgument(name='y'), target=None, \
persistent=None),
        ],
        output_specs=[
            OutputSpec(kind=<OutputKind.USER_OUTPUT: 1>, arg=TensorArgument(name='add_tensor'), \
target=None),
        ],
    )
    Range constraints: {}"""


def test_the_program_of_the_documents():
    assert str(document_program()) == DOCUMENT


def test_the_same_program_gives_the_same_text():
    assert str(document_program()) == str(document_program())


def test_a_program_is_told_in_one_line():
    assert repr(document_program()) == (
        "<ExportedProgram (ATEN) of 3 operators: (x: f32[10, 10], y: f32[10, 10]) → f32[10, 10]>"
    )
    b = Builder()
    given = [b.input(f"x{i}", torch.zeros(2)) for i in range(9)]
    short = repr(b.program(tuple(given)))
    assert short.endswith("x3: f32[2], … 5 more) → f32[2], f32[2], f32[2], f32[2], … 5 more>")


def test_dynamic_sizes_and_ranges():
    b = Builder()
    s = b.env.symbol(hint=4)
    x = b.input("x", torch.zeros(4, 3), sizes=(wrap(s), 3))
    n = b.call(aten.sym_size.int, x, 0)
    m = b.call(operator.mul, n, 3)
    y = b.call(aten.view.default, x, [m])
    text = str(b.program((y, n), ranges={"s0": "VR[0, 9]"}))
    assert 'def forward(self, x: "f32[s0, 3]"):' in text
    assert 'sym_size_int: "Sym(s0)" = torch.ops.aten.sym_size.int(x, 0)' in text
    assert 'mul: "Sym(3*s0)" = sym_size_int * 3' in text
    assert 'view_default: "f32[3*s0]" = torch.ops.aten.view.default(x, [mul])' in text
    assert text.endswith("Range constraints: {s0: VR[0, 9]}")


def test_many_results_constants_and_options():
    b = Builder()
    x = b.input("x", torch.zeros(4))
    b.input("flag", True)
    top = b.call(aten.topk.default, x, 2)
    full = b.call(
        aten.full.default, [2], 1, dtype=torch.float16, device=torch.device("cpu"), pin_memory=False
    )
    text = graph_text(b.program((b.item(top, 0), full, None, "s")).graph)
    assert 'def forward(self, x: "f32[4]", flag):' in text
    assert "        topk_default = torch.ops.aten.topk.default(x, 2)\n" in text
    assert '        getitem: "f32[2]" = topk_default[0]\n' in text
    assert (
        'full_default: "f16[2]" = torch.ops.aten.full.default([2], 1, dtype=torch.float16, '
        "device=device('cpu'), pin_memory=False)"
    ) in text
    assert text.endswith("        return (getitem, full_default, None, 's')")


def test_sub_graphs_follow_as_classes():
    inner = fx.Graph()
    inner.output((inner.call_function(aten.sin.default, (inner.placeholder("a"),)),))
    root = nn.Module()
    root.true_graph_0 = fx.GraphModule(nn.Module(), inner)
    graph = fx.Graph()
    x = graph.placeholder("x")
    branch = graph.get_attr("true_graph_0")
    graph.output((graph.call_function(torch.ops.higher_order.cond, (x, branch, branch, [x])),))
    text = graph_text(fx.GraphModule(root, graph).graph)
    assert "        true_graph_0 = self.true_graph_0\n" in text
    assert "torch.ops.higher_order.cond(x, true_graph_0, true_graph_0, [x])" in text
    assert "\n\n    class true_graph_0(torch.nn.Module):\n        def forward(self, a):\n" in text


def test_values_without_a_source_are_set_apart():
    b = Builder()
    x = b.input("x", torch.zeros(4))
    y = b.call(aten.neg.default, x)
    b.stack = ""
    text = graph_text(b.program(b.call(aten.neg.default, y)).graph)
    assert "code: y = x + 1\n" in text
    assert "\n\n        # (no source line)\n        neg_default_1" in text


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([("/a/b/my.py", 1, "forward", "x")], "/a/b/my.py:1 in forward, code: x"),
        (
            [
                ("/a/my.py", 7, "forward", "self.layer(x)"),
                ("/v/site-packages/torch/nn/modules/linear.py", 3, "forward", "F.linear()"),
            ],
            "/a/my.py:7 in forward, code: self.layer(x)",
        ),
        (
            [("/v/site-packages/torch/nn/x.py", 3, "f", "F()")],
            "/v/site-packages/torch/nn/x.py:3 in f, code: F()",
        ),
        ([], ""),
    ],
)
def test_the_innermost_line_of_the_user(frames, text):
    node = fx.Graph().placeholder("x")
    node.meta["stack_trace"] = stack(*frames)
    assert source_text(node) == text


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16,
        torch.int32, torch.int64, torch.uint8, torch.uint16, torch.bool, torch.complex64,
        torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    ],
)  # fmt: skip
def test_dtypes_are_abbreviated_as_the_peer_does(dtype):
    from torch.utils._dtype_abbrs import dtype_abbrs

    assert dtype_text(dtype) == dtype_abbrs[dtype]


def test_targets_and_arguments():
    x = fx.Graph().placeholder("x")
    assert target_text(aten.add.Tensor) == "torch.ops.aten.add.Tensor"
    assert target_text(torch.ops.higher_order.cond) == "torch.ops.higher_order.cond"
    assert target_text(torch.sym_max) == "torch.sym_max"
    assert target_text(operator.neg) == "operator.neg"
    assert argument_text((x, [1, {"a": x}], slice(None, 2))) == (
        "(x, [1, {'a': x}], slice(None, 2, None))"
    )
    assert argument_text((x,)) == "(x,)"
    assert argument_text(aten.add.Tensor) == "torch.ops.aten.add.Tensor"


def test_html_is_escaped_and_complete():
    b = Builder()
    x = b.input("x", torch.zeros(4))
    b.stack = stack(("m.py", 1, "f", "if a < b: y"))
    page = b.program(b.call(aten.neg.default, x))._repr_html_()
    assert "<span class='badge'>ATEN</span> 1 operator<" in page
    assert "<summary>1 input</summary>" in page
    assert "white-space:pre;" in page, "else notebooks break the lines of the graph"
    assert "if a &lt; b" in page
    assert re.findall(r"<td>(.*?)</td>", page)[:2] == ["x", "f32[4]"]
    assert len(re.findall(r"<details[ >]", page)) == page.count("</details>") == 4
