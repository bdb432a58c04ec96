"""Programs in the Edge dialect, with delegates: saved and loaded, nothing is lost."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from examples.models import MODELS
from lostwax.backends import (
    Backend,
    CapabilityPartitioner,
    CompileSpec,
    DelegationSpec,
    Payload,
    XnnpackPartitioner,
    lower_whole,
)
from lostwax.errors import LoadError, VerificationError
from lostwax.ir.graph.delegate import held_delegates
from lostwax.ir.graph.handles import handles_of
from lostwax.ir.graph.lookup import all_nodes
from tests.pt2.mutants import mutant, packed, records

Dim = lostwax.Dim
MODEL = "archive/models/model.json"
linear = nn.Linear(4, 4)


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.erf(torch.relu(linear(x)) * 2)


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(linear(x)) if x.sum() > 0 else linear(x) * 2


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum(0)
        return torch.sigmoid(linear(x) + self.seen)


CASES: dict[str, Callable[[], Any]] = {
    "chain": lambda: chain,
    "branches": lambda: branches,
    "state": Counter,
}


def save(program: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lostwax.save(program, buffer, metadata="full")
    return buffer.getvalue()


def load(data: bytes) -> Any:
    return lostwax.load(io.BytesIO(data))


def describe(program: Any) -> list[Any]:
    delegates = list(held_delegates(program.graph_module))
    modules = [program.graph_module, *(d.program.graph_module for d in delegates)]
    nodes = [(n.name, handles_of(n)) for module in modules for n in all_nodes(module)]
    parts = [
        (d.backend_id, d.processed_bytes, d.compile_specs, d.events, sorted(d.named_data))
        for d in delegates
    ]
    return [str(program), nodes, parts, [str(d.program) for d in delegates]]


def assert_nothing_is_lost(edge: lostwax.EdgeProgramManager, name: str = "forward") -> None:
    program = edge.exported_program(name)
    data = save(program)
    loaded = load(data)
    loaded.validate()
    assert describe(loaded) == describe(program)
    assert save(loaded) == data
    again = lostwax.EdgeProgramManager({name: loaded})
    assert str(again.delegation_report()) == str(edge.delegation_report())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert again.to_executable().buffer == edge.to_executable().buffer


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["none", "xnnpack"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost(name: str, backend: str, dynamic: bool) -> None:
    shapes = {"x": {0: Dim("b", max=8)}} if dynamic else None
    edge = lostwax.export(CASES[name](), (torch.ones(2, 4),), dynamic_shapes=shapes).to_edge()
    edge = edge.to_backend(XnnpackPartitioner()) if backend == "xnnpack" else edge
    assert_nothing_is_lost(edge)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_bundled_models(name: str) -> None:
    module, inputs = MODELS[name].tiny().eval(), MODELS[name].tiny_inputs()
    edge = lostwax.export(module, inputs).to_edge().to_backend(XnnpackPartitioner())
    program = edge.exported_program()
    loaded = load(save(program))
    assert describe(loaded) == describe(program)
    again = lostwax.EdgeProgramManager({"forward": loaded})
    assert again.to_executable().buffer == edge.to_executable().buffer


class Named(Backend):
    """Has data beside the bytes, no bytes at all, and events by name."""

    def preprocess(self, program: Any, compile_specs: Any) -> Payload:
        names = [n.name for n in program.graph.nodes if n.op == "call_function"]
        data = {"weights": torch.arange(6.0).reshape(2, 3).t(), "raw": b"\0\1", "none": b""}
        return Payload(b"", data, {"first": names[:1], 7: names})


def test_what_backends_keep_beside_the_bytes() -> None:
    spec = DelegationSpec(Named(), (CompileSpec("speed", b"\xff\0"), CompileSpec("", b"")))
    takes_relu = CapabilityPartitioner(
        spec, lambda n: "" if n.target is lostwax.ops.edge.aten.relu.default else "no"
    )
    edge = lostwax.export(chain, (torch.ones(2, 4),)).to_edge().to_backend(takes_relu)
    assert_nothing_is_lost(edge)
    (delegate,) = held_delegates(load(save(edge.exported_program())).graph_module)
    assert delegate.processed_bytes == b""
    assert delegate.named_data["raw"] == b"\0\1"
    assert delegate.named_data["none"] == b""
    torch.testing.assert_close(
        delegate.named_data["weights"], torch.arange(6.0).reshape(2, 3).t(), rtol=0, atol=0
    )


def test_programs_with_lowered_modules_in_them() -> None:
    edge = lostwax.export(
        lambda x: torch.relu(linear(x)), (torch.ones(2, 4),), dynamic_shapes=({0: Dim("b", max=8)},)
    ).to_edge()
    part = lower_whole(edge.exported_program(), XnnpackPartitioner())
    program = lostwax.export(
        lambda x: torch.erf(part(part(x))),
        (torch.ones(2, 4),),
        dynamic_shapes=({0: Dim("c", max=6)},),
    )
    loaded = load(save(program))
    assert loaded.dialect == "ATEN"
    assert describe(loaded) == describe(program)
    assert loaded.to_edge().to_executable().buffer == program.to_edge().to_executable().buffer
    x = torch.randn(3, 4)
    theirs = torch.export.load(io.BytesIO(save(program))).module()
    torch.testing.assert_close(theirs(x), loaded.module()(x))


def test_several_programs_share_weights() -> None:
    programs = {n: lostwax.export(chain, (torch.ones(n + 1, 4),)).to_edge() for n in range(2)}
    several = {
        f"m{n}": e.to_backend(XnnpackPartitioner()).exported_program() for n, e in programs.items()
    }
    loaded = load(save(several))
    assert {n: describe(p) for n, p in loaded.items()} == {
        n: describe(p) for n, p in several.items()
    }


@pytest.mark.parametrize("backend", ["none", "xnnpack"])
@pytest.mark.parametrize("name", ["chain", "state"])
def test_torch_reads_the_operators(name: str, backend: str) -> None:
    edge = lostwax.export(CASES[name](), (torch.ones(2, 4),)).to_edge()
    edge = edge.to_backend(XnnpackPartitioner()) if backend == "xnnpack" else edge
    program = edge.exported_program()
    theirs = torch.export.load(io.BytesIO(save(program)))
    assert theirs.dialect == "ATEN"
    assert "aten.relu" in str(theirs) or "aten.sigmoid" in str(theirs)
    x = torch.randn(2, 4)
    torch.testing.assert_close(theirs.module()(x), program.module()(x))


def test_what_torch_does_not_get_is_told() -> None:
    lowered = lostwax.export(chain, (torch.ones(2, 4),)).to_edge().to_backend(XnnpackPartitioner())
    with pytest.warns(UserWarning, match="torch.export.load the operators that they stand for"):
        lostwax.save(lowered.exported_program(), io.BytesIO())
    inside = (
        lostwax.export(branches, (torch.ones(2, 4),)).to_edge().to_backend(XnnpackPartitioner())
    )
    with pytest.warns(UserWarning, match="a delegate of XnnpackBackend in a branch or a loop"):
        lostwax.save(inside.exported_program(), io.BytesIO())


def test_a_loaded_program_becomes_a_manager() -> None:
    program = load(save(lostwax.export(chain, (torch.ones(2, 4),)).to_edge().exported_program()))
    with pytest.raises(lostwax.errors.LoweringError, match=r"lostwax\.EdgeProgramManager\(\{'forw"):
        program.to_edge()


# --------------------------------------------------------------------------------------- bad files


@pytest.fixture(scope="module")
def good() -> bytes:
    shapes = {"x": {0: Dim("b", max=8)}}
    edge = lostwax.export(chain, (torch.ones(2, 4),), dynamic_shapes=shapes).to_edge()
    return save(edge.to_backend(XnnpackPartitioner()).exported_program())


def edited(good: bytes, change: Callable[[Any], Any]) -> bytes:
    parts = records(good)
    tree = json.loads(parts[MODEL])
    change(tree["lostwax"])
    return packed({**parts, MODEL: json.dumps(tree).encode()})


def delegate(own: Any) -> Any:
    return own["whole"]["lostwax"]["delegates"][0]


def call(own: Any) -> Any:
    nodes = own["whole"]["graph_module"]["graph"]["nodes"]
    return next(n for n in nodes if "delegate" in n["target"])["inputs"][0]["arg"]["as_delegate"]


def entry(own: Any, end: str) -> Any:
    return next(e for n, e in own["held"]["config"].items() if n.endswith(end))


HARMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no payload": (lambda own: own["held"]["config"].pop("0.payload"), "it has no field"),
    "no weights": (lambda own: own.pop("held"), "it has no field"),
    "a number of none": (lambda own: call(own).update(number=3), "there is no delegate 3"),
    "a number that is none": (lambda own: call(own).update(number="0"), "there is no delegate '0'"),
    "a name that is none": (lambda own: call(own).update(path="a.b"), "no name of a delegate"),
    "a name that is taken": (lambda own: call(own).update(path="forward"), "no name of a delegate"),
    "no backend": (lambda own: delegate(own).update(backend=4), "no name of a backend"),
    "a spec": (
        lambda own: delegate(own).update(compile_specs=[["a", "%%"]]),
        "the compile spec 'a' is damaged",
    ),
    "an event": (lambda own: delegate(own)["events"].append([[1], []]), "no event of a backend"),
    "floats for bytes": (
        lambda own: entry(own, "payload")["tensor_meta"].update(dtype=7),
        "",
    ),
    "an operator": (
        lambda own: delegate(own)["graph"]["nodes"][0].update(
            target="lostwax.ops.edge.os.system.x"
        ),
        "the operator lostwax.ops.edge.os.system.x is not registered",
    ),
    "no operator": (
        lambda own: delegate(own)["graph"]["nodes"][0].update(target="lostwax.ops.edge"),
        "is not registered",
    ),
    "in itself": (
        lambda own: delegate(own)["graph"]["nodes"][0]["inputs"][0].update(
            arg={"as_delegate": {"name": "x", "path": "x", "number": 0}}
        ),
        "is in itself",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_damage_is_told(good: bytes, harm: str) -> None:
    change, text = HARMS[harm]
    with pytest.raises(LoadError) as info:
        load(edited(good, change))
    assert text in str(info.value)


def test_damaged_files_load_or_say_what_is_wrong(good: bytes) -> None:
    for seed in range(600):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                program = load(mutant(good, seed))
                program.validate()
            except (LoadError, VerificationError):
                continue
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
