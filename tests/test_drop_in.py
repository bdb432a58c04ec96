"""What is written for torch.export runs with lostwax: its argument names, and what they do."""

from __future__ import annotations

import copy
import io
from types import MappingProxyType
from typing import Any

import pytest
import torch

import lostwax
from lostwax import Dim
from lostwax.errors import (
    ConstraintViolationError,
    InputValueError,
    LoadError,
    LostwaxError,
    NotCallableError,
    NotYetError,
    SaveError,
    VerificationError,
)


class Pair(torch.nn.Module):
    def forward(self, x, y):
        return x + y


@pytest.fixture(scope="module")
def program():
    return lostwax.export(Pair(), (torch.ones(3), torch.ones(3)))


def test_files_take_the_arguments_of_torch(program):
    file = io.BytesIO()
    opset = {"mine": 2}
    lostwax.save(ep=program, f=file, extra_files={"a": "b"}, opset_version=opset, pickle_protocol=4)
    version = torch._C._get_max_operator_version()
    file.seek(0)
    found: dict[str, str] = {"a": ""}
    expected = {"aten": version, "mine": 2}
    loaded = lostwax.load(f=file, extra_files=found, expected_opset_version=expected)
    assert found == {"a": "b"}
    assert loaded.module()(torch.ones(3), torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    file.seek(0)
    assert torch.export.load(file) is not None


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_example_call_is_read_whatever_its_protocol(program, protocol):
    file = io.BytesIO()
    lostwax.save(program, file, pickle_protocol=protocol)
    file.seek(0)
    assert lostwax.load(file).example_inputs is not None


@pytest.mark.parametrize("opset", [{"aten": 1}, {"mine": "2"}])
def test_versions_that_are_not_true_are_not_written(program, opset):
    with pytest.raises(SaveError, match="opset_version says"):
        lostwax.save(program, io.BytesIO(), opset_version=opset)


@pytest.mark.parametrize("expected", [{"aten": 1}, {"mine": 2}])
def test_another_version_than_the_expected_is_refused(program, expected):
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    with pytest.raises(LoadError, match="expected_opset_version says"):
        lostwax.load(file, expected_opset_version=expected)


def test_load_gives_a_dict_if_asked_for_it(program):
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    assert list(lostwax.load(file, by_name=True)) == ["model"]


def test_arguments_by_the_names_of_torch(program):
    assert lostwax.unflatten(module=program, flat_args_adapter=None) is not None
    assert program.run_decompositions(decomp_table=None, decompose_custom_triton_ops=False)
    with pytest.raises(NotYetError, match="decompose_custom_triton_ops"):
        program.run_decompositions(decompose_custom_triton_ops=True)
    inputs = lostwax.AdditionalInputs()
    inputs.add((torch.ones(3),), MappingProxyType({"y": torch.ones(3)}))
    inputs.verify(ep=program)


def test_kwargs_are_any_mapping():
    kwargs = MappingProxyType({"y": torch.ones(3)})
    program = lostwax.export(Pair(), (torch.ones(3),), kwargs)
    assert program.module()(torch.ones(3), y=torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


class Regroup(torch.nn.Module):
    def forward(self, x, y):
        return x.view(y.shape[0], 4)


class Branch(torch.nn.Module):
    def forward(self, x, y):
        return x.sin() if x.shape[0] > 3 * y.shape[0] else x.cos()


class Narrow(torch.nn.Module):
    def forward(self, x, y):
        return x.sin() if x.shape[0] > 5 else x.cos()


class Fixed(torch.nn.Module):
    def forward(self, x, y):
        return x + torch.ones(8)


SHAPES = ({0: Dim("a")}, {0: Dim("b")})


@pytest.mark.parametrize("module", [Regroup(), Branch()])
def test_deferred_relations_are_checked_in_each_call(module):
    args = torch.randn(8), torch.randn(2)
    with pytest.raises(ConstraintViolationError):
        lostwax.export(module, args, dynamic_shapes=SHAPES)
    options = {"prefer_deferred_runtime_asserts_over_guards": True}
    program = lostwax.export(module, args, dynamic_shapes=SHAPES, **options)
    run = program.module()
    fits, differs = (torch.randn(12), torch.randn(3)), (torch.randn(4), torch.randn(9))
    assert torch.equal(run(*fits), module(*fits))
    with pytest.raises(InputValueError):
        run(*differs)


@pytest.mark.parametrize("module", [Fixed(), Narrow()])
def test_what_restricts_one_size_alone_is_not_deferred(module):
    args = torch.randn(8), torch.randn(2)
    with pytest.raises(ConstraintViolationError):
        lostwax.export(
            module, args, dynamic_shapes=SHAPES, prefer_deferred_runtime_asserts_over_guards=True
        )


# ------------------------------------------------------------------------------ names of objects


def test_a_table_of_decompositions_is_a_dict_when_asked(program):
    table = lostwax.default_decompositions()
    assert isinstance(table, lostwax.CustomDecompTable)
    silu = torch.ops.aten.silu.default
    del table[silu]
    made = table.materialize()
    assert type(made) is dict
    assert made.keys() == {*table}
    assert silu not in made


def test_a_program_has_a_verifier(program):
    assert program.verifiers == [program.verifier]
    assert program.verifier.dialect == program.dialect
    program.verifier().check(program)
    broken = copy.deepcopy(program)
    del next(n for n in broken.graph.nodes if n.op == "call_function").meta["val"]
    with pytest.raises(VerificationError):
        broken.verifier().check(broken)


def test_a_program_is_updated_and_verified(program):
    module = copy.deepcopy(program).graph_module
    (add,) = (n for n in module.graph.nodes if n.op == "call_function")
    add.target = torch.ops.aten.sub.Tensor
    made = program._update(module, program.graph_signature, verifiers=[program.verifier])
    assert made.module()(torch.ones(3), torch.ones(3)).tolist() == [0.0, 0.0, 0.0]
    assert program.module()(torch.ones(3), torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    del add.meta["val"]  # it is found again
    assert program._update(module, program.graph_signature).graph_module is module
    add.target = torch.sub
    with pytest.raises(VerificationError):
        program._update(module, program.graph_signature)


def test_errors_have_their_message_by_name():
    with pytest.raises(NotCallableError) as caught:
        lostwax.export(Pair(), (torch.ones(3), torch.ones(3)))()
    assert caught.value.msg == str(caught.value)


def test_a_signature_names_another_node():
    program = copy.deepcopy(lostwax.export(Pair(), (torch.ones(3), torch.ones(3))))
    signature = program.module_call_graph[0].signature
    x, y, add, _ = program.graph.nodes
    signature.replace_all_uses_with(add, x)
    assert [a.name for a in signature.outputs] == [x.name]
    assert [a.name for a in signature.inputs] == [x.name, y.name]


class Twice(torch.nn.Module):
    """Calls one module twice, with other graphs: the second call is of another type."""

    def __init__(self):
        super().__init__()
        self.inner = Square()

    def forward(self, x):
        return self.inner(self.inner(x).double())


class Square(torch.nn.Module):
    def forward(self, x):
        return x * x if x.dtype is torch.float32 else x * 3


def test_calls_with_graphs_of_their_own():
    kept = {"preserve_module_call_signature": ("inner",)}
    tree = lostwax.unflatten(lostwax.export(Twice(), (torch.ones(2),), **kept))
    assert isinstance(tree.inner, lostwax.InterpreterModuleDispatcher)
    first, second = tree.inner.call_modules()
    two = torch.full((2,), 2.0)
    assert first(two).tolist() == [4.0, 4.0]
    assert second(two.double()).tolist() == [6.0, 6.0]
    assert tree.inner.type_name().endswith("Square")
    assert tree.type_name().endswith("Twice")


def test_members_of_unflattened_modules(program, capsys):
    tree = lostwax.unflatten(program)
    x, y = torch.ones(3), torch.zeros(3)
    inputs = tree.process_forward_inputs(x, y=y)
    assert len(inputs) == 2
    assert inputs[0] is x
    assert inputs[1] is y
    shown = tree.print_readable(include_stride=True, include_device=True, colored=False)
    assert capsys.readouterr().out == shown + "\n"
    add = next(n for n in tree.graph.nodes if n.op == "call_function")
    with tree.graph.inserting_after(add):
        twice = tree.graph.call_function(torch.ops.aten.mul.Tensor, (add, add.args[0]))
    add.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)
    tree.finalize()
    assert tree(x + 1, y).tolist() == [4.0, 4.0, 4.0]


class Take(lostwax.FlatArgsAdapter):
    def adapt(self, target_spec, input_spec, input_args, metadata=None, obj=None):
        return input_args


def test_an_adapter_has_paths():
    assert Take().get_flat_arg_paths() == []


def test_a_draft_says_what_it_corrected():
    args = torch.randn(8), torch.randn(2)
    program = lostwax.draft_export(Regroup(), args, dynamic_shapes=SHAPES)
    report = program._report
    assert not report.successful()
    assert "a = 4*b" in str(report)
    fits = torch.randn(12), torch.randn(3)
    assert program.module()(*fits).shape == (3, 4)
    with pytest.raises(InputValueError):
        program.module()(torch.randn(12), torch.randn(2))
    shapes = report.apply_suggested_fixes()
    again = lostwax.export(Regroup(), args, dynamic_shapes=shapes, constraints=report.constraints)
    assert again.module()(*fits).shape == (3, 4)
    fixed = lostwax.draft_export(Fixed(), args, dynamic_shapes=SHAPES)
    assert fixed.module()(*args).shape == (8,)


def test_a_draft_of_what_holds_has_nothing_to_say():
    program = lostwax.draft_export(Pair(), (torch.ones(3), torch.ones(3)))
    assert program._report.successful()


# ---------------------------------------------------------------------------- records of archives


def write_records(writer, folder):
    (folder / "deep").mkdir()
    (folder / "deep" / "a.txt").write_text("a")
    with writer as archive:
        archive.write_bytes("data/some", b"\0\1")
        archive.write_string("notes", "text")
        archive.write_file("data/file", str(folder / "deep" / "a.txt"))
        archive.write_folder("folder", str(folder))
        assert archive.has_record("notes")
        assert archive.count_prefix("data/") == 2


def read_records(reader):
    with reader as archive:
        assert archive.archive_version() == 0
        assert archive.read_bytes("data/some") == b"\0\1"
        assert archive.read_string("notes") == "text"
        assert archive.read_bytes("folder/deep/a.txt") == b"a"
        return {n for n in archive.get_file_names() if not n.startswith((".data", "byteorder"))}


@pytest.mark.parametrize("writes", ["ours", "torch"])
def test_records_are_written_and_read_as_by_torch(writes, tmp_path):
    from torch.export import pt2_archive as peer

    path = str(tmp_path / "a.pt2")
    (tmp_path / "files").mkdir()
    sides = {"ours": lostwax.pt2_archive, "torch": peer}
    write_records(sides[writes].PT2ArchiveWriter(path), tmp_path / "files")
    assert read_records(lostwax.PT2ArchiveReader(path)) == read_records(peer.PT2ArchiveReader(path))
    assert lostwax.is_pt2_package(path)
    assert lostwax.is_pt2_package((tmp_path / "a.pt2").read_bytes())
    assert not lostwax.is_pt2_package(b"PK nothing")
    assert not lostwax.is_pt2_package(str(tmp_path / "none.pt2"))


def test_an_archive_that_fails_is_not_written(tmp_path):
    path = tmp_path / "a.pt2"
    archive = lostwax.PT2ArchiveWriter(path)
    archive.write_string("notes", "a")
    with pytest.raises(SaveError, match="already"), archive:
        archive.write_string("notes", "b")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SaveError, match="closed"):
        archive.write_string("more", "c")
    with pytest.raises(SaveError, match="plain path"):
        lostwax.PT2ArchiveWriter(path).write_string("../up", "c")


# ---------------------------------------------------------------------------- torch's own programs


@pytest.fixture(scope="module")
def peer():
    return torch.export.export(Pair(), (torch.ones(3), torch.ones(3)))


TAKERS = {
    "check": lambda program: lostwax.check(program, Pair()),
    "diff": lambda program: lostwax.diff(program, program),
    "modules": lambda program: lostwax.modules({"a": program}),
    "pass": lambda program: lostwax.passes.DeadCode()(program),
    "save": lambda program: lostwax.save(program, io.BytesIO()),
    "to_edge": lambda program: lostwax.to_edge(program),
    "unflatten": lambda program: lostwax.unflatten(program),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_a_program_of_torch_is_refused_with_the_call_that_converts_it(taker, peer):
    with pytest.raises((TypeError, LostwaxError), match=r"lostwax\.interop\.from_torch\(program\)"):
        TAKERS[taker](peer)


def test_conversions_say_which_way_they_go(program, peer):
    with pytest.raises(TypeError, match="one of lostwax already"):
        lostwax.interop.from_torch(program)
    with pytest.raises(TypeError, match="to_torch takes a program of lostwax"):
        lostwax.interop.to_torch(peer)


TORCHS: dict[str, Any] = {
    "torch.export.save": lambda program, take: take(program, io.BytesIO()),
    "torch.export.unflatten": lambda program, take: take(program),
    "torch.export.export": lambda program, take: take(program, (torch.ones(3), torch.ones(3))),
    "torch._inductor.aoti_compile_and_package": lambda program, take: take(program),
    "torch.onnx.export": lambda program, take: take(program, (), dynamo=True, verbose=False),
    "executorch.exir.to_edge": lambda program, take: take(program),
    "executorch.exir.to_edge_transform_and_lower": lambda program, take: take(program),
    "openvino.convert_model": lambda program, take: take(program),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TORCHS)
def test_who_takes_torchs_programs_says_how_it_takes_ours(name, program):
    package, _, function = name.rpartition(".")
    module = pytest.importorskip(package, reason=f"{package} is not installed")
    taker = "executorch" if "executorch" in name else package
    with pytest.raises(Exception, match=rf"{taker} takes lostwax\.interop\.to_torch\(program\)"):
        TORCHS[name](program, getattr(module, function))


def test_a_program_is_of_its_class_to_all_others(program):
    assert program.__class__ is lostwax.ExportedProgram
    assert isinstance(program, lostwax.ExportedProgram)
    assert not isinstance(program, (torch.nn.Module, torch.export.ExportedProgram, dict))
    assert copy.copy(program).graph_module is program.graph_module
    with pytest.raises(AttributeError, match=r"no attribute 'wax'$"):
        _ = program.wax
