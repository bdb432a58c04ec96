"""Archives that mean harm, or are damaged: a `LoadError` that says what and where; nothing is run,
and little memory is used.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import LoadError
from tests.pt2.compare import saved
from tests.pt2.mutants import packed, records

MODEL = "archive/models/model.json"
WEIGHTS = "archive/data/weights/model_weights_config.json"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(3, 2)

    def forward(self, x, k=2):
        return torch.relu(self.l(x)) * k


@pytest.fixture(scope="module")
def good() -> bytes:
    dynamic = {"x": {0: lostwax.Dim("b", max=8)}}
    return saved(lostwax.export(Net(), (torch.randn(4, 3),), dynamic_shapes=dynamic))


def edited(good: bytes, change: Callable[[Any], Any], name: str = MODEL) -> bytes:
    parts = records(good)
    tree = json.loads(parts[name])
    change(tree)
    return packed({**parts, name: json.dumps(tree).encode()})


def refused(data: bytes, *texts: str) -> LoadError:
    with pytest.raises(LoadError) as caught:
        lostwax.load(io.BytesIO(data))
    for text in texts:
        assert text in str(caught.value)
    return caught.value


def graph(tree: Any) -> Any:
    return tree["graph_module"]["graph"]


# ----------------------------------------------------------------------------------- the container


def test_not_an_archive() -> None:
    refused(b"", "not a .pt2 archive")
    refused(b"PK" * 100, "not a .pt2 archive", "while reading the buffer")
    refused(b"\0" * 100_000, "not a .pt2 archive")


def test_the_file_is_named(tmp_path: Any) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(b"")
    with pytest.raises(LoadError, match=r"while reading .*bad\.pt2"):
        lostwax.load(path)
    with pytest.raises(FileNotFoundError):
        lostwax.load(tmp_path / "none.pt2")


def test_cut_off_anywhere(good: bytes) -> None:
    for end in range(0, len(good), 97):
        refused(good[:end])


def test_one_bit_of_the_program(good: bytes) -> None:
    at = good.index(b"aten.relu") + 3
    bad = bytearray(good)
    bad[at] ^= 1
    refused(bytes(bad), "models/model.json is damaged: its checksum")


def test_one_bit_of_the_weights_is_found_if_asked(good: bytes) -> None:
    bad = bytearray(good)
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        start = archive.getinfo("archive/data/weights/weight_0").header_offset
    name, extra = struct.unpack_from("<HH", bad, start + 26)
    bad[start + 30 + name + extra] ^= 1
    lostwax.load(io.BytesIO(bad))
    with pytest.raises(LoadError, match="weight_0 is damaged"):
        lostwax.load(io.BytesIO(bad), checksums=True)
    lostwax.load(io.BytesIO(good), checksums=True)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_records_of_one_name(good: bytes) -> None:
    buffer = io.BytesIO(good)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(MODEL, b"{}")
    refused(buffer.getvalue(), "two records 'models/model.json'")


@pytest.mark.parametrize(
    "name", ["archive/extra/../../x", "archive/extra//x", "archive/extra/a\\b", "archive/./x"]
)
def test_names_that_are_no_plain_paths(good: bytes, name: str) -> None:
    refused(packed({**records(good), name: b"x"}), "is not a plain path")


def test_a_second_folder(good: bytes) -> None:
    refused(packed({**records(good), "other/x": b""}), "not in the archive's folder 'archive'")


def test_compressed_records_are_read(good: bytes) -> None:
    program = lostwax.load(io.BytesIO(packed(records(good), compression=zipfile.ZIP_DEFLATED)))
    x = torch.randn(3, 3)
    assert torch.equal(program.module()(x), lostwax.load(io.BytesIO(good)).module()(x))


def test_a_bomb(good: bytes) -> None:
    """128 MB of zeros in 128 KB: refused before they are expanded."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = b"".join(packer.compress(bytes(1 << 20)) for _ in range(128)) + packer.flush()
    name = b"archive/data/weights/model_weights_config.json"
    bomb = packed({k: v for k, v in records(good).items() if k != WEIGHTS})
    end = bomb.rindex(b"PK\x05\x06")
    size, start = struct.unpack_from("<II", bomb, end + 12)
    fields = (20, 0x800, 8, 0, 0, 0, len(zeros), 128 << 20)
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, *fields, len(name), 0) + name + zeros
    entry = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, *fields, len(name), *[0] * 5, start)
    head, directory = bomb[:start], bomb[start : start + size] + entry + name
    count = len(records(good))
    tail = (0x06054B50, 0, 0, count, count, len(directory), len(head + local), 0)
    tracemalloc.start()
    refused(head + local + directory + struct.pack("<IHHHHIIH", *tail), "too much for a file of")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_versions(good: bytes) -> None:
    parts = records(good)
    refused(packed({**parts, "archive/archive_version": b"1"}), "the version '1'", "version 0")
    refused(packed({**parts, "archive/archive_format": b"pt3"}), "is not a .pt2")
    refused(packed({**parts, "archive/byteorder": b"big"}), "other byte order")
    newer = edited(good, lambda t: t["schema_version"].update(major=9))
    refused(newer, "schema 9.20", "lostwax reads schema 8", "while reading the model 'model'")
    later = edited(good, lambda t: t["opset_version"].update(aten=99))
    refused(later, "version 99 of the operators aten", "fix: load it with a newer torch")
    refused(edited(good, lambda t: t["opset_version"].update(aten="x")), "version x")
    assert lostwax.load(io.BytesIO(edited(good, lambda t: t["opset_version"].clear())))
    refused(packed({k: v for k, v in parts.items() if k != MODEL}), "holds no program")
    refused(packed({"old/serialized_exported_program.json": b"{}"}), "torch before 2.8", "fix:")


# ------------------------------------------------------------------------------------- the program


def test_what_and_where(good: bytes) -> None:
    def change(tree: Any) -> None:
        graph(tree)["nodes"][1]["inputs"][0]["arg"] = {"as_tensor": {"name": "nowhere"}}

    error = refused(
        edited(good, change),
        "the value 'nowhere' is used, and nothing before defines it",
        "while reading node 1 of graph 'main'",
        "while reading the model 'model'",
    )
    assert error.where[-1] == "node 1 of graph 'main'"


def test_a_missing_field(good: bytes) -> None:
    refused(edited(good, lambda t: graph(t)["nodes"][0].pop("target")), "it has no field 'target'")
    refused(edited(good, lambda t: t.pop("range_constraints")), "no field 'range_constraints'")


@pytest.mark.parametrize(
    "target",
    [
        "os.system", "builtins.eval", "torch.load", "torch.ops.import_module.os.system",
        "_operator", "torch.ops.load_library.x.y", "torch.hub.load", "operator.attrgetter",
        "__import__",
        "torch.ops.aten.__class__.x", "torch.ops.higher_order.__class__", "torch.ops.__class__.a.b",
    ],
)  # fmt: skip
def test_functions_that_are_no_operators(good: bytes, target: str) -> None:
    error = refused(edited(good, lambda t: graph(t)["nodes"][1].update(target=target)))
    assert "not a function that a program may call" in str(error) or "not registered" in str(error)


def test_an_operator_that_is_not_here(good: bytes) -> None:
    name = "torch.ops.nowhere.op.default"
    bad = edited(good, lambda t: graph(t)["nodes"][1].update(target=name))
    refused(bad, f"{name} is not registered", "fix: import the library that registers it")
    assert "nowhere" not in dir(torch.ops)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch /tmp/lostwax_was_here')",
        "Symbol('s0').__class__",
        "Pow(Integer(9), Pow(Integer(9), Pow(Integer(9), Integer(9))))",
        "(" * 10_000,
        "Add(" * 1000 + "Integer(1)" + ")" * 1000,
        "lambda: 0",
        "FloorDiv(Integer(1), Integer(0))",
        "9" * 10_000,
    ],
)
def test_expressions(good: bytes, text: str) -> None:
    def change(tree: Any) -> None:
        meta = graph(tree)["tensor_values"]["x"]
        meta["sizes"][0] = {"as_expr": {"expr_str": text, "hint": {"as_int": 4}}}

    refused(edited(good, change), "input 2 of graph 'main'")


@pytest.mark.parametrize(
    "name",
    ["x); import os; os.abort(", "a b", "1x", "", "x\n", "a.b", 7, None, "ñ"],
)
def test_names_become_code_and_must_be_names(good: bytes, name: Any) -> None:
    def change(tree: Any) -> None:
        node = graph(tree)["nodes"][0]
        old = node["outputs"][0]["as_tensor"]["name"]
        node["outputs"][0]["as_tensor"]["name"] = name
        graph(tree)["tensor_values"][str(name)] = graph(tree)["tensor_values"][old]

    refused(edited(good, change), "node 0 of graph 'main'")


def test_names_that_python_needs_are_changed() -> None:
    """torch would let them through: a result called `torch` would break the lines after it."""
    good = saved(lostwax.export(Net(), (torch.randn(4, 3),)))
    text = records(good)[MODEL].replace(b'"relu"', b'"torch"').replace(b'"x"', b'"class"')
    program = lostwax.load(io.BytesIO(packed({**records(good), MODEL: text})))
    program.validate()
    assert program.graph_signature.user_inputs[0] == "class_"
    x = torch.randn(4, 3)
    assert torch.equal(program.module()(x), lostwax.load(io.BytesIO(good)).module()(x))


def test_nesting(good: bytes) -> None:
    parts = records(good)
    refused(packed({**parts, MODEL: b'{"a":' * 100_000}), "models/model.json is not JSON")
    refused(packed({**parts, MODEL: b"[" * 100_000 + b"]" * 100_000}), "is not JSON")

    def graphs(tree: Any) -> None:
        inner = {"inputs": [], "outputs": [], "nodes": [], "tensor_values": {}}
        for i in range(60):
            node = {"target": "torch.ops.higher_order.cond", "outputs": [], "metadata": {}}
            arg = {"as_graph": {"name": f"g{i}", "graph": inner}}
            node["inputs"] = [{"name": "", "arg": arg, "kind": 1}]
            inner = {"inputs": [], "outputs": [], "nodes": [node], "tensor_values": {}}
        graph(tree)["nodes"] += inner["nodes"]

    refused(edited(good, graphs), "graphs are nested deeper than")

    def trees(tree: Any) -> None:
        spec: Any = {"type": None, "context": None, "children_spec": []}
        for _ in range(200):
            spec = {"type": "builtins.list", "context": "null", "children_spec": [spec]}
        root = tree["graph_module"]["module_call_graph"][0]["signature"]
        root["out_spec"] = json.dumps([1, spec])

    refused(edited(good, trees), "nested deeper than", "the module call graph")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"type": "os.system", "context": "null"}, "'os.system' is not registered"),
        ({"type": "collections.namedtuple", "context": "os.x"}, "named tuple 'os.x' is not"),
        (
            {
                "type": "collections.defaultdict",
                "context": {
                    "default_factory_module": "os",
                    "default_factory_name": "getcwd",
                    "dict_context": [],
                },
            },
            "makes its values by os.getcwd",
        ),
        (
            {
                "type": "builtins.dict",
                "context": '[{"__enum__": true, "fqn": "os:x", "name": "y"}]',
            },
            "keys that are not strings or numbers",
        ),
    ],
)
def test_structures_import_nothing(good: bytes, spec: Any, text: str) -> None:
    def change(tree: Any) -> None:
        root = tree["graph_module"]["module_call_graph"][0]["signature"]
        root["out_spec"] = json.dumps([1, {**spec, "children_spec": []}])

    refused(edited(good, change), text)


def test_objects_of_other_classes_are_not_read(good: bytes) -> None:
    spec = {"custom_obj": {"arg": {"name": "o", "class_fqn": "a.B"}, "custom_obj_name": "o"}}

    def change(tree: Any) -> None:
        tree["graph_module"]["signature"]["input_specs"][0] = spec

    refused(edited(good, change), "object of the class 'a.B'", "never read")


# ------------------------------------------------------------------------------------- the weights


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sizes": [{"as_int": 1 << 40}, {"as_int": 3}]}, "it needs"),
        ({"strides": [{"as_int": 1 << 61}, {"as_int": 1}]}, "it needs"),
        ({"strides": [{"as_int": -1}, {"as_int": 1}]}, "-1 is no size"),
        ({"storage_offset": {"as_int": 1 << 62}}, "is no size"),
        ({"sizes": [{"as_int": 2}]}, "1 sizes and 2 strides"),
        ({"dtype": 77}, "unknown number 77"),
        ({"device": {"type": "x:y", "index": None}}, "is no device"),
    ],
)
def test_weights_stay_inside_their_record(good: bytes, change: Any, text: str) -> None:
    def wrong(tree: Any) -> None:
        tree["config"]["l.weight"]["tensor_meta"].update(change)

    refused(edited(good, wrong, WEIGHTS), text, "the tensor 'l.weight'")


def test_weights_without_bytes_cost_nothing(good: bytes) -> None:
    """torch makes zeros of them, of whatever size the file says."""

    def wrong(tree: Any) -> None:
        huge = {"sizes": [{"as_int": 1 << 30}, {"as_int": 1 << 20}]}
        tree["config"]["l.weight"]["tensor_meta"].update(huge)
        tree["config"]["l.weight"]["path_name"] = "weight_9"

    bad = records(edited(good, wrong, WEIGHTS))
    program = lostwax.load(io.BytesIO(packed({**bad, "archive/data/weights/weight_9": b""})))
    assert isinstance(program.state_dict["l.weight"], lostwax.FakeTensor)


class Trap:
    def __reduce__(self) -> Any:
        return pytest.fail, ("code of the file was run",)


def test_pickles_are_not_run(good: bytes) -> None:
    buffer = io.BytesIO()
    torch.save(((torch.ones(4, 3), Trap()), {}), buffer)
    parts = {**records(good), "archive/data/sample_inputs/model.pt": buffer.getvalue()}
    program = lostwax.load(io.BytesIO(packed(parts)))
    assert program.example_inputs is None
    parts["archive/data/sample_inputs/model.pt"] = pickle.dumps(Trap())
    assert lostwax.load(io.BytesIO(packed(parts))).example_inputs is None

    def wrong(tree: Any) -> None:
        tree["config"]["l.weight"]["use_pickle"] = True

    refused(edited(good, wrong, WEIGHTS), "it is pickled", "never read")


def test_example_inputs_come_back(good: bytes) -> None:
    program = lostwax.load(io.BytesIO(good))
    assert program.example_inputs is not None
    args, kwargs = program.example_inputs
    assert args[0].shape == (4, 3)
    assert kwargs == {}


@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        ("symbols", {"s0": {"name": -1}}, "says name '-1'"),
        ("symbols", {"s0": {"name": ""}}, "has no name for it"),
        ("symbols", {"s0": {"name": "s0", "hint": "4"}}, "says hint '4'"),
        ("facts", ["Symbol('s0', integer=True)"], "is no condition"),
        ("facts", ["false"], "never holds"),
        ("facts", ["GreaterThan(Symbol('s_b', integer=True), Integer(9))"], "contradicts"),
        ("ranges", [["s0 + 1", 0, "9"]], "the range of s0 + 1 is 0 to '9'"),
        ("ranges", [["s0 + 1", 0]], "is not a name"),
        ("values", {"main": {"relu": [1]}}, "our own record of 'relu' is damaged"),
        ("values", {"main": {"relu": ["true", 2, 2, 1, 0]}}, "our own record of 'relu' is damaged"),
        ("values", {"main": {"relu": ["__import__('os')", 2, 2, 1, 0]}}, "not an expression"),
        ("whole", {}, "it has no field 'graph_module'"),
        ("whole", 3, "damaged"),
    ],
)
def test_our_own_record(good: bytes, part: str, value: Any, text: str) -> None:
    def change(tree: Any) -> None:
        assert part == "whole" or part in tree["lostwax"]
        tree["lostwax"][part] = value

    refused(edited(good, change), text)


def test_conditions_that_take_long(good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lostwax.pt2.graph.decode.MAX_LEARNING", 300)
    size = "Symbol('s_b', integer=True)"
    facts = [f"Unequality(PythonMod(Mul({size}, {size}), Integer({n})), Integer(1))" for n in
             range(3, 99)]  # fmt: skip
    text = "too many, or too intricate"
    refused(edited(good, lambda tree: tree["lostwax"].update(facts=facts)), text, "the guards")


def test_our_own_order(good: bytes) -> None:
    """A wrong one is refused; one of other nodes says nothing."""

    def change(names: list[str]) -> Callable[[Any], None]:
        return lambda tree: tree["lostwax"].__setitem__("order", {"main": names})

    names = [n.name for n in lostwax.load(io.BytesIO(good)).graph.nodes]
    refused(edited(good, change(names[::-1])), "stands before what it reads", "the order of graph")
    assert lostwax.load(io.BytesIO(edited(good, change(["x"]))))


def test_a_guard_that_is_not_understood() -> None:
    """Without it the program could run where it is wrong."""
    good = saved(lostwax.export(Net(), (torch.randn(4, 3),)))

    def wrong(tree: Any) -> None:
        del tree["lostwax"]
        tree["guards_code"] = ["__import__('os').system('true') == 0"]

    refused(edited(good, wrong), "is not understood", "the guards")
