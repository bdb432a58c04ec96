"""The Edge dialect: its operators and their dtypes, its programs, its rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

import lostwax
from lostwax.dialects.dtype_rows import FILE, parse_rows, read_rows, write_rows
from lostwax.errors import LoweringError, ParseError, PassError, VerificationError
from lostwax.ops.dialect_operator import overload_of

edge = lostwax.ops.edge
aten = torch.ops.aten


def targets(program: Any) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


# ------------------------------------------------------------------------------- operators


def test_the_example_of_the_specification() -> None:
    sigmoid = edge.aten.sigmoid.default
    assert str(sigmoid._schema) == "aten::sigmoid(Tensor self) -> Tensor"
    wide = {torch.float32, torch.float64, torch.float16, torch.bfloat16}  # as the runtime's kernel
    whole = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool}
    assert sigmoid._schema.arguments[0].allowed_types == wide | whole
    assert sigmoid._schema.returns[0].allowed_types == wide


def test_its_rows_are_those_of_the_specification() -> None:
    text = write_rows([read_rows()["aten::sigmoid"]])
    assert text.splitlines() == [
        "- func: sigmoid",
        "  namespace: edge",
        "  inherits: aten::sigmoid",
        "  type_alias:",
        "    T0: [BFloat16, Double, Float, Half]",
        "    T1: [Bool, Byte, Char, Int, Long, Short]",
        "    T2: [Float]",
        "  type_constraint:",
        "  - self: T0",
        "    __ret_0: T0",
        "  - self: T1",
        "    __ret_0: T2",
    ]


def test_an_operator_is_one_object_and_can_be_called() -> None:
    add = edge.aten.add.Tensor
    assert add is edge.aten.add.Tensor
    assert add != aten.add.Tensor
    assert overload_of(add) is aten.add.Tensor
    assert add.to_out_variant() is aten.add.out
    assert edge.aten.max.dim.to_out_variant() is aten.max.dim_max
    assert torch.equal(add(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
    assert str(add) == "edge.aten.add.Tensor"
    with pytest.raises(AttributeError, match=r"no Edge operator aten\.add\.Nothing"):
        _ = edge.aten.add.Nothing


def test_copies_in_a_dim_order() -> None:
    copy = edge.dim_order_ops._to_dim_order_copy.default
    made = copy(torch.ones(1, 2, 3, 3), dtype=torch.float64, dim_order=[0, 2, 3, 1])
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert made.dtype is torch.float64


def test_dtypes_go_together_in_rows() -> None:
    add, mm = read_rows()["aten::add.Tensor"], read_rows()["aten::mm"]
    f32, i32, c64 = torch.float32, torch.int32, torch.complex64
    assert add.allows({"self": f32, "other": i32, "__ret_0": f32})
    assert not add.allows({"self": f32, "other": i32, "__ret_0": i32})
    assert not add.allows({"self": c64, "other": c64, "__ret_0": c64})
    assert mm.allows({"self": i32, "mat2": i32, "__ret_0": i32})
    assert not mm.allows({"self": f32, "mat2": i32, "__ret_0": f32})
    half = torch.float16
    assert mm.allows({"self": half, "mat2": half, "__ret_0": half})


def test_every_core_operator_with_tensors_has_rows() -> None:
    make_rows = pytest.importorskip("tests.dialects.make_rows", reason="no ExecuTorch")
    known = read_rows()
    names = {
        f"{op._schema.name}.{op._schema.overload_name}".removesuffix(".")
        for op in make_rows.core_operators()
    }
    assert {"aten::_fft_c2r", "aten::view", "aten::sym_size.int", "aten::resize_"} <= names
    assert not names - known.keys()
    assert len(known) >= 200
    c64, f32 = torch.complex64, torch.float32
    assert known["aten::_fft_c2r"].allows({"self": c64, "__ret_0": f32})
    assert not known["aten::_fft_c2r"].allows({"self": f32, "__ret_0": f32})


def test_half_precision_stands_where_the_runtime_has_it() -> None:
    halves = {torch.float16, torch.bfloat16}
    known = read_rows()
    for name in ("add.Tensor", "mm", "addmm", "_softmax", "convolution", "cumsum", "index.Tensor"):
        (returned,) = (s for n, s in known[f"aten::{name}"].allowed_types.items() if "ret" in n)
        assert halves <= returned, name
    norm = known["aten::native_layer_norm"]
    f16, f32 = torch.float16, torch.float32
    names = ["input", "weight", "bias", "__ret_0", "__ret_1", "__ret_2"]
    assert not norm.is_apart(dict.fromkeys(names, f16))
    mixed = dict(zip(names, [f16, f32, f32, f16, f32, f32], strict=True))
    assert norm.is_apart(mixed)
    assert norm.allows(mixed)


def test_the_file_of_rows_is_read_as_it_is_written() -> None:
    text = FILE.read_text()
    entries = list(parse_rows(text))
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    assert head + write_rows(entries) == text


@pytest.mark.parametrize("line", ["  nonsense: 1", "  - self: T9", "    T0: [Floaty]"])
def test_a_damaged_file_of_rows_is_refused(line: str) -> None:
    text = f"- func: a\n  inherits: aten::a\n  type_alias:\n    T0: [Float]\n{line}\n"
    if "self" in line:
        text = text.replace("  - self", "  type_constraint:\n  - self")
    with pytest.raises(ParseError):
        list(parse_rows(text))


# ------------------------------------------------------------------------------- programs


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("unused", torch.ones(3))
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Any, n: Any) -> Any:
        y = x.transpose(0, 1).reshape(-1) * 2
        return torch.cat([y, n.float()]) + n.sum() * 2.5, x.int() + 1, (self.weight @ x).detach()


INPUTS = torch.randn(4, 3), torch.arange(2)


@pytest.fixture(scope="module")
def manager() -> Any:
    return lostwax.export(Mixed(), INPUTS).to_edge()


def test_an_edge_program_computes_the_same(manager: Any) -> None:
    program = manager.exported_program()
    assert program.dialect == "EDGE"
    for ours, eager in zip(program.module()(*INPUTS), Mixed()(*INPUTS), strict=True):
        torch.testing.assert_close(ours, eager)


def test_views_are_copies_and_numbers_are_tensors(manager: Any) -> None:
    program = manager.exported_program()
    names = targets(program)
    assert all(name.startswith("edge.") for name in names)
    assert "edge.aten.permute_copy.default" in names
    assert "edge.dim_order_ops._to_dim_order_copy.default" in names
    constants = [
        program.constants[name] for name in program.graph_signature.lifted_tensor_constants
    ]
    assert sorted((t.dtype, t.item()) for t in constants if t.dtype == torch.float32) == [
        (torch.float32, 2.0),
        (torch.float32, 2.5),
    ]
    assert all(
        not isinstance(a, (int, float))
        for n in program.graph.nodes
        if str(n.target) in ("edge.aten.add.Tensor", "edge.aten.mul.Tensor")
        for a in n.args
    )


def test_state_that_nothing_reads_is_gone(manager: Any) -> None:
    assert set(manager.exported_program().state_dict) == {"weight"}


def test_operands_have_the_dtype_of_the_result(manager: Any) -> None:
    for node in manager.exported_program().graph.nodes:
        if str(node.target) == "edge.aten.add.Tensor":
            assert len({a.meta["val"].dtype for a in node.args}) == 1


def test_a_pass_sees_edge_operators(manager: Any) -> None:
    def subtract(module: GraphModule) -> None:
        for node in module.graph.nodes:
            if node.target is edge.aten.add.Tensor:
                node.target = edge.aten.sub.Tensor

    other = manager.transform([subtract])
    assert "edge.aten.sub.Tensor" in targets(other.exported_program())
    assert "edge.aten.sub.Tensor" not in targets(manager.exported_program())
    assert torch.equal(other.exported_program().module()(*INPUTS)[1], INPUTS[0].int() - 1)


def test_a_pass_that_leaves_the_dialect_is_refused(manager: Any) -> None:
    def use_aten(module: GraphModule) -> None:
        for node in module.graph.nodes:
            if node.target is edge.aten.add.Tensor:
                node.target = aten.add.Tensor

    with pytest.raises(VerificationError, match=r"aten\.add\.Tensor is an ATen operator") as error:
        manager.transform([use_aten])
    assert "test_edge.py" in str(error.value)


def test_dtypes_that_no_row_has_are_refused(manager: Any) -> None:
    def multiply(module: GraphModule) -> None:
        for node in module.graph.nodes:
            if str(node.target) == "edge.aten.mm.default":
                node.target = edge.aten.bitwise_and.Tensor
                node.args = (node.args[0], node.args[0])
                node.meta["val"] = node.args[0].meta["val"]

    with pytest.raises(Exception, match="bitwise_and") as error:
        manager.transform([multiply])
    assert "test_edge.py" in str(error.value)


def test_what_reads_a_layout_is_refused() -> None:
    def read(x: Any) -> Any:
        return (x.t() + 1).as_strided((2, 2), (1, 2))

    program = lostwax.export(read, (torch.ones(3, 2),))
    with pytest.raises(LoweringError, match=r"as_strided[\s\S]*contiguous") as error:
        program.to_edge()
    assert "test_edge.py" in str(error.value)


def test_an_operator_that_nothing_takes_apart_is_refused() -> None:
    program = lostwax.export(lambda x: torch.special.i0(x), (torch.ones(2),))
    with pytest.raises(LoweringError, match=r"i0\.default is not of core ATen") as error:
        program.to_edge()
    assert "test_edge.py" in str(error.value)
    assert "preserve_ops=(torch.ops.aten.i0.default,)" in str(error.value)


def test_operators_can_be_preserved() -> None:
    program = lostwax.export(nn.Softplus(), (torch.ones(2),))
    config = lostwax.EdgeConfig(preserve_ops=(aten.softplus.default,))
    made = lostwax.to_edge(program, config=config)
    assert targets(made.exported_program()) == ["edge.aten.softplus.default"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda p: lostwax.to_edge(nn.ReLU()), "to_edge takes programs"),
        (lambda p: lostwax.to_edge({"for ward": p}), "no name of a method"),
        (lambda p: lostwax.to_edge(p, constant_methods={"forward": 1}), "of a constant method"),
        (lambda p: p.to_edge().exported_program("other"), "no method 'other'; there are forward"),
        (lambda p: lostwax.to_edge(p.to_edge().exported_program()), "in the Edge dialect already"),
    ],
)
def test_wrong_arguments(given: Any, message: str) -> None:
    program = lostwax.export(nn.ReLU(), (torch.ones(2),))
    with pytest.raises(LoweringError, match=message):
        given(program)


def test_a_pass_that_puts_a_number_in_a_tensors_place_is_told_so() -> None:
    program = lostwax.export(nn.ReLU(), (torch.ones(2),))

    def use_number(module: GraphModule) -> None:
        (node,) = module.graph.find_nodes(op="call_function", target=edge.aten.relu.default)
        node.args = (3,)

    text = r"node 'relu' cannot be typed: aten\.relu.*the argument 'self' is 3, not a tensor"
    with pytest.raises(PassError, match=text):
        program.to_edge().transform([use_number])
    with pytest.raises(PassError, match=text):
        program.to_edge().to_executable(lostwax.ExecutableConfig(passes=[use_number]))
