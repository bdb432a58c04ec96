"""`save(..., metadata=...)`: how much of the user's source a file tells. By default the innermost
lines, and nothing of the folders of this machine."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import sys
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import InputValueError, SaveError
from tests.fresh import run_python

ROOT = Path(__file__).parents[2]

SOURCE = """
import torch
from torch import nn


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def scale(self, x):
        return x * 2

    def forward(self, x, i):
        if x.shape[0] > 3:  # a guard
            x = self.scale(self.linear(x))
        n = i.item()
        torch._check(n < x.shape[0], lambda: "too far")  # an assertion
        if x.requires_grad:  # a question
            x = x + 1
        a, b = x.split(2, 1)
        c = torch.cond(n > 1, lambda a: a.sin(), lambda a: a.cos(), (a,))
        return Doubled.apply(b)[n:] + c[n:]


class Strides(nn.Module):
    def forward(self, x):
        return x * 2 if x.stride()[0] == 4 else x  # an assertion about an input's strides
"""


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Modules whose source is in a temporary folder."""
    file = tmp_path_factory.mktemp("users") / "nets_elsewhere.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


X, AT = torch.randn(5, 4), torch.tensor(1)
ROWS = {"x": {0: lostwax.Dim.AUTO}, "i": None}


@pytest.fixture(scope="module")
def program(nets: Any) -> Any:
    return lostwax.export(nets.Net(), (X, AT), dynamic_shapes=ROWS)


@pytest.fixture(scope="module")
def strides(nets: Any) -> Any:
    return lostwax.export(nets.Strides(), (X,))


@pytest.fixture(scope="module")
def joint() -> Any:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).sum()

    return lostwax.export_joint(Loss(), (X,))


def save(program: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch does not check
        lostwax.save(program, buffer, **options)
    return buffer.getvalue()


def read_all(data: bytes) -> str:
    """All records of an archive as one text."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return "\n".join(archive.read(name).decode("latin-1") for name in archive.namelist())


def first_product(program: Any) -> Any:
    """The node of `x * 2`, in `Net.scale`."""
    return next(n for n in program.graph.nodes if n.target is torch.ops.aten.mul.Tensor)


def folders(nets: Any) -> list[str]:
    """What must not be in files."""
    found = [Path(nets.__file__).parent, Path.home(), os.getcwd(), sys.prefix, Path(torch.__file__)]
    return [*map(str, found), "site-packages"]


@pytest.mark.parametrize("kind", ["program", "strides", "joint"])
@pytest.mark.parametrize("options", [{}, {"metadata": "lines"}, {"metadata": "none"}])
def test_files_have_no_absolute_paths(
    nets: Any, kind: str, options: Any, request: pytest.FixtureRequest
) -> None:
    text = read_all(save(request.getfixturevalue(kind), **options))
    assert [folder for folder in folders(nets) if folder in text] == []
    if options == {"metadata": "none"}:
        names = "nets_elsewhere.py", "test_metadata.py", "self.linear(x)", "stack_trace"
        assert [name for name in names if name in text] == []


def test_whole_traces_on_demand(nets: Any, program: Any) -> None:
    text = read_all(save(program, metadata="full"))
    assert nets.__file__ in text
    again = lostwax.load(io.BytesIO(save(program, metadata="full")))
    traces = [n.meta["stack_trace"] for n in program.graph.nodes if n.op == "call_function"]
    calls = [n for n in again.graph.nodes if n.op == "call_function"]
    assert [n.meta["stack_trace"] for n in calls] == traces
    assert again.assumptions == program.assumptions
    assert [g.where for g in again.guards] == [g.where for g in program.guards]
    assert str(again) == str(program)


def test_lines_are_innermost_and_stay_when_saved_again(nets: Any, program: Any) -> None:
    again = lostwax.load(io.BytesIO(save(program)))
    scaled = first_product(again)
    line = SOURCE.split("\n").index("        return x * 2", 15) + 1
    frame = f'  File "nets_elsewhere.py", line {line}, in scale\n    return x * 2\n'
    assert scaled.meta["stack_trace"] == frame
    assert str(again) == str(program).replace(f"{Path(nets.__file__).parent}/", "")
    assert save(again) == save(program)


@pytest.mark.parametrize("amount", ["none", "lines", "full"])
def test_both_read_and_run_it(nets: Any, program: Any, amount: str) -> None:
    data = save(program, metadata=amount)
    ours = lostwax.load(io.BytesIO(data))
    ours.validate()
    theirs = torch.export.load(io.BytesIO(data))
    for n in (1, 2):
        want = program.module()(X, torch.tensor(n))
        torch.testing.assert_close(ours.module()(X, torch.tensor(n)), want)
        torch.testing.assert_close(theirs.module()(X, torch.tensor(n)), want)
    torch.testing.assert_close(lostwax.unflatten(ours)(X, AT), program.module()(X, AT))


@pytest.mark.parametrize(
    ("amount", "place"),
    [
        ("none", "an unknown line"),
        ("lines", "nets_elsewhere.py:{} in forward: {}"),
        ("full", "{folder}/nets_elsewhere.py:{} in forward: {}"),
    ],
)
def test_messages_of_loaded_programs_name_the_line(
    nets: Any, program: Any, strides: Any, amount: str, place: str
) -> None:
    def name(code: str) -> str:
        (line,) = [i for i, text in enumerate(SOURCE.split("\n"), 1) if text.strip() == code]
        return f"at {place.format(line, code, folder=Path(nets.__file__).parent)}"

    module = lostwax.load(io.BytesIO(save(program, metadata=amount))).module()
    with pytest.raises(InputValueError) as small:
        module(X[:3], AT)
    assert name("if x.shape[0] > 3:  # a guard") in str(small.value)
    with pytest.raises(RuntimeError, match="too far") as far:
        module(X, torch.tensor(5))
    check = 'torch._check(n < x.shape[0], lambda: "too far")  # an assertion'
    assert name(check) in str(far.value)
    turned = lostwax.load(io.BytesIO(save(strides, metadata=amount))).module()
    with pytest.raises((RuntimeError, InputValueError)) as asked:
        turned(torch.randn(4, 5).t())
    code = "return x * 2 if x.stride()[0] == 4 else x  # an assertion about an input's strides"
    assert name(code) in str(asked.value)


def test_what_was_asked_keeps_its_line(program: Any) -> None:
    def asked(amount: str) -> list[str]:
        given = lostwax.load(io.BytesIO(save(program, metadata=amount)))
        return [q.where for q in given.assumptions]

    assert asked("full") == [q.where for q in program.assumptions]
    assert all(where.startswith("nets_elsewhere.py:") for where in asked("lines"))
    assert set(asked("none")) == {"an unknown line"}


@pytest.mark.parametrize("amount", ["none", "lines", "full"])
def test_check_finds_the_first_wrong_node_of_a_loaded_program(nets: Any, amount: str) -> None:
    module = nets.Net().eval()
    program = lostwax.export(module, (X, AT), dynamic_shapes=ROWS)
    program = lostwax.load(io.BytesIO(save(program, metadata=amount)))
    scaled = first_product(program)
    scaled.args = (scaled.args[0], 2.5)
    program.graph_module.recompile()
    (found, *_) = lostwax.check(program, module).differences
    assert found.node.startswith(f"{scaled.name} = torch.ops.aten.mul.Tensor\n")


@pytest.mark.parametrize("given", ["line", "", None, True, ["full"]])
def test_other_amounts_are_refused(program: Any, given: Any, tmp_path: Path) -> None:
    text = r"metadata is [\s\S]*\"lines\", the innermost[\s\S]*\"full\", whole[\s\S]*\"none\", no"
    with pytest.raises(SaveError, match=text):
        lostwax.save(program, tmp_path / "a.pt2", metadata=given)
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------- how large


LLAMA = """
import io, json, zipfile
import torch
import lostwax
from sweep.libraries import load_transformers

transformers = load_transformers()
config = transformers.LlamaConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=64, use_cache=False,
)
model, ids = transformers.LlamaForCausalLM(config).eval(), torch.arange(8)[None]


def write(save, program, **options):
    save(program, buffer := io.BytesIO(), **options)
    with zipfile.ZipFile(buffer) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/models/model.json")]
        return archive.read(name).decode()


program = lostwax.export(model, (ids,))
found = {each: write(lostwax.save, program, metadata=each) for each in ("none", "lines", "full")}
found["default"] = write(lostwax.save, program)
found["torch"] = write(torch.export.save, torch.export.export(model, (ids,)))
print(json.dumps(found))
"""


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_a_llama_is_no_larger_than_torchs() -> None:
    ran = run_python(LLAMA)  # transformers is not to be imported here
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["default"] == found["lines"]
    sizes = [len(found[each]) for each in ("none", "lines", "torch", "full")]
    assert sizes == sorted(sizes)
    assert [each for each, text in found.items() if "site-packages" in text] == ["full", "torch"]
    nodes = json.loads(found["lines"])["graph_module"]["graph"]["nodes"]
    traces = [node["metadata"]["stack_trace"] for node in nodes]
    assert all(re.match(r'  File "transformers/\S+", line \d+, in .*\n .*\n$', t) for t in traces)
