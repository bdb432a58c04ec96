"""What newcomers do wrong, and what they are told: where in their code, what, why, and what to
write instead. All four are in what Python prints of the error."""

from __future__ import annotations

import io
import random
import re
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from lostwax.backends import XnnpackPartitioner
from lostwax.errors import LostwaxError

X = torch.ones(3, 4)
BATCH = Dim("batch", min=2, max=8)
torch.library.define("wrong_uses::no_fake", "(Tensor x) -> Tensor")
torch.library.impl("wrong_uses::no_fake", "CPU")(lambda x: x * 2)
torch.library.define("wrong_uses::no_kernel", "(Tensor x) -> Tensor")
torch.library.register_fake("wrong_uses::no_kernel")(torch.empty_like)


class Net(nn.Module):
    def __init__(self, forward: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen: list[Tensor] = []
        self.run = forward or (lambda self, x: self.layer(x))

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


class Masked(Net):
    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.layer(x) * mask


class Starred(Net):
    def forward(self, *parts: Tensor) -> Any:
        return self.layer(parts[0]) + parts[1]


async def respond(x: Tensor) -> Tensor:
    return x


def waiting(self: Net, x: Tensor) -> Any:
    """As of `async def forward`. It is closed, for Python warns of what nobody waits for."""
    result = respond(self.layer(x))
    result.close()
    return result


def export(forward: Any, *args: Any, **options: Any) -> Any:
    return lostwax.export(Net(forward), args or (X,), **options)


def make_program() -> Any:
    return lostwax.export(Net(), (X,), dynamic_shapes=({0: BATCH},))


def write(folder: Path, data: bytes) -> Path:
    (folder / "model.pt2").write_bytes(data)
    return folder / "model.pt2"


def cut_off(folder: Path) -> Path:
    file = io.BytesIO()
    lostwax.save(make_program(), file)
    return write(folder, file.getvalue()[:700])


def save_weights(folder: Path) -> Path:
    torch.save(Net().state_dict(), folder / "weights.pth")
    return folder / "weights.pth"


def make_on_meta() -> nn.Module:
    with torch.device("meta"):
        return Net()


class Use(NamedTuple):
    """A wrong use, and a part of each of the three sentences; the line is that of the lambda."""

    name: str
    do: Any
    what: str
    why: str
    instead: str


_PLAIN_BATCH = {0: BATCH}
USES = [
    Use("a misspelt argument in dynamic_shapes",
        lambda _: lostwax.export(Masked(), (X, X), dynamic_shapes={"x": None, "maks": None}),
        "'maks' is not an argument of this call (did you mean 'mask'?)",
        "dynamic_shapes has the form of the arguments", "dynamic_shapes={'x': "),
    Use("dynamic_shapes of another structure",
        lambda _: lostwax.export(Net(), (X,), dynamic_shapes=({0: BATCH}, {0: BATCH})),
        "2 entries for 1 argument(s) (x)",
        "dynamic_shapes has the form of the arguments", "dynamic_shapes={'x': {0: Dim("),
    Use("one entry for all of *args",
        lambda _: lostwax.export(Starred(), (X, X), dynamic_shapes={"parts": {0: BATCH}}),
        "*parts is 2 argument(s) of this call",
        "dynamic_shapes has the form of the arguments",
        "dynamic_shapes={'parts': [{0: Dim(\"batch\")}, {0: Dim(\"batch\")}]}"),
    Use("contradictory bounds",
        lambda _: Dim("batch", min=8, max=2), "no size is at least 8 and at most 2",
        "a Dim, a name and a range", "min=2, max=8"),
    Use("an example outside of the bounds",
        lambda _: lostwax.export(Net(), (X,), dynamic_shapes=({0: Dim("batch", min=8)},)),
        "x.shape[0] is 3 in the example, but Dim('batch', min=8) is at least 8",
        "a Dim, a name and a range", 'batch = Dim("batch", min=3), or an example within'),
    Use("a Dim that the second input lacks",
        lambda _: lostwax.export(Masked(), (X, X + 1), dynamic_shapes=({0: BATCH}, None)),
        "a declared dimension cannot vary as declared",
        "because ", "mask: {0: batch}"),
    Use("a constant size that is declared to vary",
        lambda _: lostwax.export(Net(), (X,), dynamic_shapes=({1: Dim("width")},)),
        "a declared dimension cannot vary as declared",
        "because aten.linear.default requires it", "width = 4  # always"),
    Use("the text of a tensor",
        lambda _: export(lambda self, x: (print(x), x)[1]),
        "its text needs the data", "tensors have sizes and dtypes, and no data",
        "decide by what operators compute of it"),
    Use("numpy in forward",
        lambda _: export(lambda self, x: torch.from_numpy(numpy.sin(x.numpy()))),
        "numpy() needs the data", "tensors have sizes and dtypes, and no data",
        "keep the computation in torch"),
    Use("a number as a text",
        lambda _: export(lambda self, x: x * len(f"{x.sum().item():.3f}")),
        "is not known while tracing", "a program is recorded once, for all data",
        "compute with the symbolic number"),
    Use("two sides that are not alike",
        lambda _: export(lambda self, x: x if x.sum() > 0 else {"nothing"}),
        "the two sides of an `if` on data do not agree", "must know what it is",
        "give both the same structure"),
    Use("backward in forward",
        lambda _: export(lambda self, x: self.layer(x).sum().backward()),
        "is given a gradient", "leaves no gradients behind", "torch.autograd.grad(loss, x)"),
    Use("a coroutine in forward",
        lambda _: lostwax.export(Net(waiting), (X,)), "of type builtins.coroutine",
        "takes and gives tensors and plain values", "write respond with def, not async def"),
    Use('device="cuda" in forward',
        lambda _: export(lambda self, x: x + torch.zeros(4, device="cuda")),
        "on the same device", "on another device than x, which is on cpu", "device=x.device"),
    Use("float64 inputs",
        lambda _: lostwax.export(Net(), (X.double(),)), "must have the same dtype",
        "x is of torch.float64, and the module's layer.weight is of torch.float32",
        "pass x.to(torch.float32), or convert the module, .to(torch.float64)"),
    Use("two dtypes in one operator",
        lambda _: export(lambda self, x: x @ torch.ones(4, 4, dtype=torch.float16)),
        "same dtype", "given tensors of several dtypes, and converts none", "y.to(x.dtype)"),
    Use("sizes that do not fit",
        lambda _: lostwax.export(Net(), (torch.ones(3, 5),)),
        "shapes cannot be multiplied (3x5 and 4x4)",
        "the module itself raises this for the example, x of size (3, 5)",
        "call the module with the example"),
    Use("weights on meta",
        lambda _: lostwax.export(make_on_meta(), (X,)), "on the same device",
        "x is on cpu, and the module's layer.weight is on meta, where tensors have no data",
        "module.to_empty(device='cpu') and load_state_dict(...)"),
    Use("args that are a dict",
        lambda _: lostwax.export(Net(), {"x": X}), "args must be a tuple", "calls of one form",
        "args=(), kwargs={...}"),
    Use("no example",
        lambda _: lostwax.export(Net()), "x is missing", "which the example shows",
        "pass it in args or in kwargs"),
    Use("a class in the place of a module",
        lambda _: lostwax.export(Net, (X,)), "Net is a class of them",
        "tensors and plain values", "make one, Net(...)"),
    Use("a scripted module",
        lambda _: lostwax.export(torch.jit.script(nn.Linear(4, 4)), (X,)), "of TorchScript",
        "TorchScript keeps its weights and its code to itself", "export the module that it was"),
    Use("an operator without a fake kernel",
        lambda _: export(lambda self, x: torch.ops.wrong_uses.no_fake(x)),
        "nothing is known of what wrong_uses::no_fake returns", "no kernel runs",
        '@torch.library.register_fake("wrong_uses::no_fake")'),
    Use("a sparse tensor",
        lambda _: lostwax.export(Net(), (X.to_sparse(),)), "layout torch.sparse_coo",
        "tensors have sizes and dtypes", "convert it to a dense strided tensor"),
    Use("a folder that is not there",
        lambda folder: lostwax.save(make_program(), folder / "none" / "model.pt2"),
        "No such file or directory", "into folders that are there", "os.makedirs("),
    Use("a folder in the place of a file",
        lambda folder: lostwax.save(make_program(), folder),
        "Is a directory", "cannot take the place of a folder", "the name of a file in it"),
    Use("a path and a program in each other's place",
        lambda folder: lostwax.save(folder / "model.pt2", make_program()),
        "is given an object of type ExportedProgram for it", "is an archive", "save(program, "),
    Use("a module in the place of a program",
        lambda _: lostwax.diff(make_program(), Net()),
        "diff takes a program of lostwax, not a", "with its graph and signature",
        "lostwax.export(module, args)"),
    Use("a decomposition by a name",
        lambda _: make_program().run_decompositions({"aten.silu": torch.relu}),
        "keyed by overloads, not by 'aten.silu'", "a name may stand for several",
        "{torch.ops.aten.silu.default: function}"),
    Use("a file that is not there",
        lambda folder: lostwax.load(folder / "none.pt2"),
        "No such file or directory", "there is no such file in", "lostwax.save(program, path)"),
    Use("a file that is cut off",
        lambda folder: lostwax.load(cut_off(folder)), "it is cut off", "loaded whole or not at all",
        "copy or download it again, or save it again"),
    Use("weights in the place of a program",
        lambda folder: lostwax.load(save_weights(folder)), "it is what torch.save writes",
        "loaded whole or not at all", "torch.load reads it"),
    Use("a call of another size",
        lambda _: make_program().module()(torch.ones(3, 5)),
        "x.shape[1] is 5, but the program was captured for 4", "holds for calls like the example's",
        "capture it again, for all sizes"),
    Use("a call out of bounds",
        lambda _: make_program().module()(torch.ones(9, 4)),
        "x.shape[0] is 9, but the program holds for 2 <= x.shape[0] <= 8",
        "holds for calls like the example's", 'Dim("batch", min=2, max=9)'),
    Use("a call of another dtype",
        lambda _: make_program().module()(X.double()),
        "x is of torch.float64, but the program was captured for torch.float32",
        "holds for calls like the example's", "pass x.to(torch.float32)"),
    Use("a program that is called",
        lambda _: make_program()(X), "an ExportedProgram is data and cannot be called",
        "its graph takes the weights as arguments", "program.module()(...)"),
    Use("an operator that no kernel computes",
        lambda _: export(lambda self, x: torch.ops.wrong_uses.no_kernel(x)).to_edge()
        .to_executable(),
        "no_kernel.default has no kernel in the ExecuTorch runtime",
        "nothing here computes this operator", "write it by other operators"),
    Use("a size without a bound in an executable",
        lambda _: lostwax.export(Net(), (X,), dynamic_shapes=({0: Dim("n")},)).to_edge()
        .to_executable(),
        "the size n has no upper bound", "the memory of an executable is planned",
        "a bound for n: Dim(name, max=...)"),
    Use("a backend by its name",
        lambda _: make_program().to_edge().to_backend("xnnpack"),
        "to_backend takes partitioners", "chosen before it runs: kernels, memory, backends",
        "lostwax.backends.XnnpackPartitioner()"),
    Use("the class of a backend",
        lambda _: make_program().to_edge().to_backend(XnnpackPartitioner),
        "it is given the class XnnpackPartitioner", "chosen before it runs",
        "lostwax.backends.XnnpackPartitioner()"),
]  # fmt: skip


ARGUMENTS = [
    Use("a word that control_flow does not know",
        lambda _: lostwax.export(Net(), (X,), control_flow="cond"), "control_flow= takes",
        "it is about branches on data", "drop it"),
    Use("a word for yes",
        lambda _: lostwax.export(Net(), (X,), strict="no"),
        "strict= takes True or False, not 'no'", "it turns a rule on or off", "strict=True"),
    Use("a number for yes, in draft_export",
        lambda _: lostwax.draft_export(
            Net(), (X,), prefer_deferred_runtime_asserts_over_guards=1),
        "prefer_deferred_runtime_asserts_over_guards= takes True or False, not 1",
        "it turns a rule on or off", "_over_guards=True"),
    Use("the name of an operator to keep",
        lambda _: lostwax.export(Net(), (X,), keep=["linear"]), "keep= takes a list of operators",
        "a name alone may mean several operators", "torch.ops.aten.linear.default"),
    Use("a submodule that is not there",
        lambda _: lostwax.export(Net(), (X,), preserve_module_call_signature=("layr",)),
        "preserve_module_call_signature: the module has no submodule 'layr'",
        "by their paths", "preserve_module_call_signature=('layer',)"),
    Use("the file before the program",
        lambda _: lostwax.save("model.pt2", make_program()), "save writes to a path",
        "a .pt2 file is an archive", 'lostwax.save(program, "model.pt2")'),
    Use("a list in the place of a table",
        lambda _: make_program().run_decompositions([torch.ops.aten.t.default]),
        "a table of decompositions is a mapping", "how each operator is computed by others",
        "table.pop(op)"),
    Use("the module before the program",
        lambda _: lostwax.check(Net(), make_program()), "check takes a program of lostwax",
        "a program is what was captured", "lostwax.export(module, args)"),
    Use("paths in the place of programs",
        lambda _: lostwax.diff("a.pt2", "b.pt2"), "diff takes a program of lostwax",
        "a program is what was captured", "lostwax.load('a.pt2')"),
    Use("a tensor in the place of calls",
        lambda _: lostwax.check(make_program(), Net(), inputs=X), "inputs is a list of calls",
        "several calls may be compared", "inputs=[(x, y)]"),
    Use("the class of a pass",
        lambda _: lostwax.Pipeline((lostwax.passes.DeadCode,))(make_program()),
        "is not a pass", "a pipeline calls its passes one after another", "DeadCode()"),
    Use("a program of ours, to from_torch",
        lambda _: lostwax.interop.from_torch(make_program()), "from_torch takes torch's programs",
        "of one of torch's", "use it as it is"),
    Use("a dimension to mark that is not there",
        lambda _: lostwax.mark_dynamic(X, 7), "there is no dimension 7 to mark",
        "for each size that varies", "one of 0, 1"),
    Use("a name in a collection of shapes",
        lambda _: lostwax.ShapesCollection().__setitem__("x", {0: BATCH}),
        "is indexed by a tensor", "for each size that varies", 'dynamic_shapes={"x": {0:'),
    Use("a loss that is not among the results",
        lambda _: lostwax.export_joint(Net(), (X,), loss_index=4), "loss_index=4",
        "a backward starts at one number", "loss_index=0"),
    Use("a method that is not there",
        lambda _: make_program().to_edge().exported_program("fwd"), "there is no method 'fwd'",
        "before it runs", "exported_program('forward')"),
    Use("a device that torch does not know",
        lambda _: lostwax.move_to_device_pass(make_program(), "gpu"), "'gpu' is no device of torch",
        "Expected one of cpu", '"cuda:0"'),
    Use("an executable that is not there",
        lambda folder: lostwax.pte.run(folder / "none.pte", [X]), "No such file or directory",
        "there is no such file in", "to_executable().save(path)"),
    Use("a tensor in the place of keyword arguments",
        lambda _: lostwax.export(Net(), (X,), X), "kwargs must be a dict",
        "calls of one form", "kwargs={'mask': mask}"),
    Use("a keyword that forward does not take",
        lambda _: lostwax.export(Net(), (X,), {"mask": X}), "it has no argument 'mask'",
        "calls of one form", "leave mask out"),
    Use("a name as a dimension",
        lambda _: lostwax.export(Net(), (X,), dynamic_shapes={"x": {"batch": BATCH}}),
        "must have its dimensions as keys, not 'batch'", "the form of the arguments",
        "dynamic_shapes={'x': {0:"),
    Use("one name with two ranges",
        lambda _: lostwax.export(
            Masked(), (X, X),
            dynamic_shapes={"x": {0: BATCH}, "mask": {0: Dim("batch", max=9)}}),
        "one name has one range", "a name and a range", "make one Dim and use it in both places"),
]  # fmt: skip
PYTHONS = (TypeError, ValueError, AttributeError, FileNotFoundError)
"""What is wrong in a call of ours alone. If the error is one of Python's own classes, its traceback
shows the line of the call; the text names the argument, or who takes it."""


def write_executable(folder: Path) -> Path:
    file = folder / "model.pte"
    lostwax.export(Net(), (X,)).to_edge().to_executable().save(file)
    return file


ARGUMENTS += [
    Use("a dimension that is not there",
        lambda _: lostwax.export(Net(), (X,), dynamic_shapes={"x": {5: BATCH}}),
        "there is no dimension 5", "the form of the arguments", "dynamic_shapes={'x': {0:"),
    Use("a list of the dimensions that vary",
        lambda _: lostwax.export(Net(), (X,), dynamic_shapes={"x": [0]}),
        "1 entries were written for it", "the form of the arguments", "dynamic_shapes={'x': {0:"),
    Use("True for a size that varies",
        lambda _: lostwax.export(Net(), (X,), dynamic_shapes={"x": {0: True}}),
        "x.shape[0] takes a Dim", "a Dim, a name and a range", "dynamic_shapes={'x': {0:"),
    Use("a Dim for a whole tensor",
        lambda _: lostwax.export(Net(), (X,), dynamic_shapes={"x": BATCH}),
        "does not say which of them", "the form of the arguments", "dynamic_shapes={'x': {0:"),
    Use("a name with a space in it",
        lambda _: Dim("2 batch"), "must be a Python identifier", "a name and a range",
        'Dim("dim_2_batch")'),
    Use("a bound that is no integer",
        lambda _: Dim("batch", max=4.5), "max must be an int", "a name and a range", "max=8"),
    Use("a bound below zero",
        lambda _: Dim("batch", min=-2), "a size is never negative", "a name and a range", "min=0"),
    Use("half of a Dim",
        lambda _: BATCH / 2, "cannot be declared by quotients", "a name and a range", "2*dim"),
    Use("a constraint on a name that nobody has",
        lambda _: lostwax.export(
            Net(), (X,), dynamic_shapes=({0: BATCH},), constraints=["m % 2 == 0"]),
        "unknown name 'm'", "a name and a range", 'constraints=["seq % 8 == 0"'),
    Use("a constraint that cannot be read",
        lambda _: lostwax.export(
            Net(), (X,), dynamic_shapes=({0: BATCH},), constraints=["batch %% 2"]),
        "found '%'", "a name and a range", 'constraints=["seq % 8 == 0"'),
    Use("a constraint that the example breaks",
        lambda _: lostwax.export(
            Net(), (X,), dynamic_shapes=({0: BATCH},), constraints=["batch % 2 == 0"]),
        "is not true of the example (batch = 3)", "a name and a range",
        "an example for which it holds"),
    Use("a constant that is no input",
        lambda _: lostwax.export(Net(), (X,), constants={"y"}),
        "has no input of this name", "values never change", "name an argument that is given"),
    Use("weights in the place of a module",
        lambda _: lostwax.export(Net().state_dict(), (X,)),
        "not OrderedDict", "tensors and plain values", "pass the nn.Module itself"),
    Use("a mark by a name",
        lambda _: lostwax.mark_dynamic(X, "batch"),
        "are numbers, not 'batch'", "a name and a range", "mark_dynamic(x, 0)"),
    Use("a class that is no dataclass",
        lambda _: lostwax.register_dataclass(Use), "is not a dataclass",
        "say where the tensors are", "decorate it with @dataclasses.dataclass"),
    Use("an argument too many",
        lambda _: make_program().module()(X, X), "2 positional arguments were given",
        "captured for calls of one form", "leave out what is too much"),
    Use("an array in the place of a tensor",
        lambda _: make_program().module()(X.numpy()), "captured with a tensor",
        "holds for calls like the example's", "torch.as_tensor(x)"),
    Use("an executable without the Edge dialect",
        lambda _: make_program().to_executable(), "has no attribute 'to_executable'",
        "of a program in the Edge dialect", "program.to_edge().to_executable(...)"),
    Use("a module of a program, scripted",
        lambda _: torch.jit.script(make_program().module()), "cannot be scripted",
        "needs no Python of yours", "lostwax.save(program, path)"),
    Use("a number as a decomposition",
        lambda _: make_program().run_decompositions({torch.ops.aten.addmm.default: 3}),
        "'int' object is not callable", "called with the arguments of the operator", "table.keep("),
    Use("a dict as a configuration",
        lambda _: make_program().to_edge(config={"preserve_ops": ()}), "config is a dict",
        "chosen before it runs", "EdgeConfig(...)"),
    Use("a number in the place of a file",
        lambda _: lostwax.load(3), "not an object of type int", "is an archive",
        'lostwax.load("model.pt2")'),
    Use("an executable in the place of a program",
        lambda folder: lostwax.load(write_executable(folder)), "it is a .pte",
        "loaded whole or not at all", "lostwax.pte reads and runs it"),
    Use("a picture in the place of a page",
        lambda folder: lostwax.explore(make_program(), folder / "model.png"),
        "is called otherwise", "a browser tells by the name", "model.html'"),
    Use("a profile that is not there",
        lambda folder: lostwax.explore(make_program(), profile=folder / "times.json"),
        "No such file or directory", "profile= is a dict", "profile=True"),
    Use("complex numbers for ExecuTorch",
        lambda _: export(lambda self, x: torch.view_as_complex(x.view(6, 2)).abs()).to_edge(),
        "'self' is c64; it may be bf16, f16, f32", "checked against the rules of its dialect",
        "by what the rule allows"),
    Use("a dropout in training, for ExecuTorch",
        lambda _: lostwax.export(nn.Dropout(), (X,)).to_edge(), "bernoulli.p is not of core ATen",
        "nothing takes it apart", "module.eval() before the export"),
]  # fmt: skip
USES += [
    Use("a list that keeps tensors",
        lambda _: export(lambda self, x: (self.seen.append(x.sum()), x)[1]),
        "keeps a tensor in the attribute seen[0]", "the next run would not find it",
        "register a buffer"),
    Use("a random number of Python's, under strict",
        lambda _: lostwax.export(lambda x: x * random.random(), (X,), strict=True),
        "random.random()", "what was read at capture", "pass it as an argument"),
]  # fmt: skip
RUNS = [
    Use("a tensor in the place of inputs", lambda file: lostwax.pte.run(file, X),
        "is given a tensor, not a list", "one by one", "run(file, [x])"),
    Use("an input of another dtype", lambda file: lostwax.pte.run(file, [X.double()]),
        "input 0 is a tensor of torch.float64", "is planned for", "x.to(torch.float32)"),
    Use("an input of another size", lambda file: lostwax.pte.run(file, [torch.ones(5, 4)]),
        "[5, 4]", "is planned for", "export it with dynamic_shapes"),
    Use("an input too many", lambda file: lostwax.pte.run(file, [X, X]),
        "takes 1 inputs, 2 are given", "one by one", "a list of 1"),
    Use("a method that is not in the file",
        lambda file: lostwax.pte.run(file, [X], method="forwrd"),
        "there is no method 'forwrd' (did you mean 'forward'?)",
        "the methods that it was written with", "method='forward'"),
]  # fmt: skip


@pytest.mark.parametrize("use", RUNS, ids=lambda use: use.name)
def test_a_wrong_call_of_a_file_is_told_all_four(use: Use, tmp_path: Path) -> None:
    pytest.importorskip("executorch.runtime", reason="needs executorch: make test")
    file = write_executable(tmp_path)
    with pytest.raises(LostwaxError) as caught:
        use.do(file)
    said = "".join(traceback.format_exception_only(caught.value))
    assert f"{Path(__file__).name}:{use.do.__code__.co_firstlineno} in " in said
    for part in (use.what, "why: ", use.why, "instead: ", use.instead):
        assert part in said, said


def test_a_patch_without_a_block_says_that_it_does_nothing() -> None:
    with pytest.warns(UserWarning, match=r"alone does nothing\n.*why: .*\n.*with lostwax") as said:
        lostwax.patch_torch_export()
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with lostwax.patch_torch_export():
            pass

        @lostwax.patch_torch_export()
        def export_of_torch() -> Any:
            return torch.export.export

        assert export_of_torch() is not torch.export.export


@pytest.mark.parametrize(
    ("name", "writer"), [("m.pte", "to_executable().save(path)"), ("m.onnx", "lostwax.onnx.save")]
)
def test_an_archive_under_the_name_of_another_file(name: str, writer: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"save writes is a \.pt2 archive[\s\S]*why: ") as said:
        lostwax.save(make_program(), tmp_path / name)
    assert writer in str(said[0].message)
    assert "m.pt2'" in str(said[0].message)
    assert said[0].filename == __file__


@pytest.mark.parametrize("use", ARGUMENTS, ids=lambda use: use.name)
def test_a_wrong_argument_is_told_what_why_and_what_instead(use: Use, tmp_path: Path) -> None:
    with pytest.raises(Exception) as caught:
        use.do(tmp_path)
    said = "".join(traceback.format_exception_only(caught.value))
    for part in (use.what, use.why, use.instead):
        assert part in said, said
    assert "why: " in said
    assert Path(__file__).name in said or type(caught.value) in PYTHONS, said


@pytest.mark.parametrize("use", USES, ids=lambda use: use.name)
def test_a_wrong_use_is_told_all_four(use: Use, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("LOSTWAX_TRACEBACK", raising=False)
    with pytest.raises(Exception) as caught:
        use.do(tmp_path)
    said = "".join(traceback.format_exception_only(caught.value))
    code = use.do.__code__
    lines = {line for _, _, line in code.co_lines() if line is not None}
    inner = (each for each in code.co_consts if hasattr(each, "co_lines"))
    lines |= {line for each in inner for _, _, line in each.co_lines() if line is not None}
    named = re.findall(rf"\bat (?:\S*/)?{Path(__file__).name}:(\d+) in ", said)
    nets = {Net.forward, Masked.forward, Starred.forward, Net.__init__}
    lines |= {line for each in nets for line in range(*_span(each.__code__))}
    assert named, said
    assert {*map(int, named)} & lines, said
    for part in (use.what, use.why, use.instead):
        assert part in said, said


def _span(code: Any) -> tuple[int, int]:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return min(lines), max(lines) + 2
