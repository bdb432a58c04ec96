"""The layers of CONTRIBUTING.md, held by a scan of the source: layer order, no import cycles, no
forbidden imports. The checks are functions over a package folder, so that each can be shown
to fail on a small tree that breaks it.

Imports inside functions count like any other. Imports under `if TYPE_CHECKING:` never run, so they
make no cycle; but to know a layer above, or the peer, in types alone is to know it: there they
count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lostwax"

# What stands in one row is of one height: none of a row imports another of it.
LAYERS = [
    ["cache"],
    ["collector", "errors", "handlers", "identity", "location", "logs", "torch_version"],
    ["branches"],
    ["sym"],
    ["types"],
    ["ops"],
    ["fake"],
    ["ir"],
    ["capture"],
    ["dialects"],
    ["pt2", "pte"],
    ["interop"],
    ["passes"],  # a face: the names of what is in ir
    ["cli"],
    ["__init__", "__main__"],
]
HEIGHT = {name: height for height, row in enumerate(LAYERS) for name in row}

PEER = (
    "torch.export",
    "torch._export",
    "torch._dynamo",
    "torch._subclasses",
    "torch.fx.experimental",
    "torch._functorch",
    "torch._inductor",
)


@dataclass(frozen=True)
class Import:
    """One mention of a module: `module` by its full dotted name, at `line` of the importer."""

    module: str
    line: int
    types_only: bool


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package at `root`, by dotted name; a package by its folder's name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def part_of(name: str, root: Path) -> str:
    """The folder or single file of the house that a module belongs to: "sym", "errors", ..."""
    return name.split(".")[1] if name != root.name else "__init__"


def imports(name: str, path: Path) -> Iterator[Import]:
    """Everything that the module names as an import, in any form: statements at any depth,
    `import_module("...")`, and `torch.fx.experimental.x` reached through a plain `import torch`."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    yield from _imports(ast.parse(path.read_text()), package, types_only=False)


def _imports(node: ast.AST, package: str, types_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.body:
            yield from _imports(child, package, types_only=True)
        for child in node.orelse:
            yield from _imports(child, package, types_only)
        return
    for module in _named_by(node, package):
        yield Import(module, getattr(node, "lineno", 0), types_only)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, package, types_only)


def _named_by(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module, names, level):
            above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            source = ".".join([*above, *([module] if module else [])])
            return [f"{source}.{alias.name}" for alias in names]
        case ast.Call(func, [ast.Constant(str(module)), *_]) if ast.unparse(func).endswith(
            ("import_module", "__import__")
        ):
            return [module]
        case ast.Attribute() if ast.unparse(node).startswith("torch."):
            return [ast.unparse(node)]
    return []


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def resolve(module: str, known: dict[str, Path]) -> str | None:
    """The module of the house that a dotted name means (`lostwax.sym.Expr` is in `lostwax.sym`)."""
    while module and module not in known:
        module = module.rpartition(".")[0]
    return module or None


def house_imports(root: Path) -> dict[str, list[tuple[str, Import]]]:
    """For each module of the house, the other modules of the house that it imports."""
    known = modules(root)
    return {
        name: [(to, i) for i in imports(name, path) if (to := resolve(i.module, known)) is not None]
        for name, path in known.items()
    }


def layer_faults(root: Path) -> list[str]:
    """Imports of a part of the same height or above, and parts that have no place in the order."""
    faults = []
    for name, found in house_imports(root).items():
        here = part_of(name, root)
        if here not in HEIGHT:
            faults.append(f"{name}: {here!r} has no layer")
            continue
        for to, i in found:
            there = part_of(to, root)
            if there != here and HEIGHT.get(there, len(LAYERS)) >= HEIGHT[here]:
                faults.append(f"{name}:{i.line} imports {to}, which is not below it")
    return faults


def cycles(root: Path) -> list[list[str]]:
    """Each knot of modules that import each other at run time, directly or around."""
    graph = {
        name: {to for to, i in found if not i.types_only and to != name}
        for name, found in house_imports(root).items()
    }
    reach = {name: _reachable(name, graph) for name in graph}
    knots = {
        tuple(sorted(other for other in reach[name] if name in reach[other]))
        for name in graph
        if name in reach[name]
    }
    return [list(knot) for knot in sorted(knots)]


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(graph[name])
    return seen


def peer_faults(root: Path) -> list[str]:
    """Mentions of the parts of torch that lostwax reimplements, outside `interop`."""
    return [
        f"{name}:{i.line} imports {i.module}"
        for name, path in modules(root).items()
        if part_of(name, root) != "interop"
        for i in imports(name, path)
        if any(within(i.module, peer) for peer in PEER)
    ]


def torch_in_sym(root: Path) -> list[str]:
    """`sym` is about integers: it runs where no torch is installed."""
    return [
        f"{name}:{i.line} imports {i.module}"
        for name, path in modules(root).items()
        if part_of(name, root) == "sym"
        for i in imports(name, path)
        if within(i.module, "torch")
    ]


# ------------------------------------------------------------------------------- the house itself


def test_a_folder_imports_only_folders_below_it():
    assert layer_faults(PACKAGE) == []


def test_no_import_cycles():
    assert cycles(PACKAGE) == []


def test_the_peer_is_not_imported():
    assert peer_faults(PACKAGE) == []


def test_sym_imports_no_torch():
    assert torch_in_sym(PACKAGE) == []


def test_contributing_says_what_each_folder_is():
    told = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    folders = [
        path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*/__init__.py")
    ]
    assert [f for f in folders if f"`{f}/`" not in told and f != "ir/passes/transforms"] == []


def test_the_scan_sees_the_package():
    assert {"lostwax", "lostwax.errors", "lostwax.sym"} <= modules(PACKAGE).keys()


# --------------------------------------------------------------------------- each check can fail


@pytest.fixture
def house(tmp_path):
    """Writes a small package: house(fake__mode="import torch") is lostwax/fake/mode.py."""
    root = tmp_path / "lostwax"

    def write(**files: str) -> Path:
        for name, source in files.items():
            path = root.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(source)
        (root / "__init__.py").touch()
        return root

    return write


def test_imports_downwards_and_within_a_folder_are_fine(house):
    root = house(
        errors="",
        sym__expr="from lostwax.errors import LostwaxError",
        sym__env="from lostwax.sym.expr import Expr\nfrom . import expr",
        fake__mode="import lostwax.sym\nfrom lostwax import errors",
    )
    assert layer_faults(root) == []
    assert cycles(root) == []


@pytest.mark.parametrize(
    "source",
    [
        "import lostwax.fake.mode",
        "from lostwax.fake import mode",
        "from lostwax.fake.mode import FakeTensorMode",
        "from ..fake import mode",
        "from .. import fake",
        "def f():\n    from lostwax.fake import mode",
        "from importlib import import_module\nimport_module('lostwax.fake')",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lostwax.fake import mode",
    ],
)
def test_an_import_upwards_is_found(house, source):
    root = house(fake__mode="", ops__views=source)
    (fault,) = layer_faults(root)
    assert fault.startswith("lostwax.ops.views:")
    assert "lostwax.fake" in fault


def test_an_import_of_the_face_is_found(house):
    root = house(ops__views="from lostwax import __version__")
    assert layer_faults(root) == ["lostwax.ops.views:1 imports lostwax, which is not below it"]


def test_an_import_sideways_is_found(house):
    root = house(pt2__encode="", pte__emit="from lostwax.pt2 import encode")
    assert layer_faults(root) == [
        "lostwax.pte.emit:1 imports lostwax.pt2.encode, which is not below it"
    ]


def test_a_part_without_a_layer_is_found(house):
    assert layer_faults(house(utils="")) == ["lostwax.utils: 'utils' has no layer"]


def test_a_cycle_is_found(house):
    root = house(sym__a="from lostwax.sym import b", sym__b="import lostwax.sym.a")
    assert cycles(root) == [["lostwax.sym.a", "lostwax.sym.b"]]


def test_a_cycle_around_through_a_deferred_import_is_found(house):
    root = house(
        sym__a="from lostwax.sym import b",
        sym__b="from lostwax.sym import c",
        sym__c="def f():\n    from lostwax.sym.a import x",
        sym__d="from lostwax.sym import a",
    )
    assert cycles(root) == [["lostwax.sym.a", "lostwax.sym.b", "lostwax.sym.c"]]


def test_a_package_that_its_own_module_imports_is_a_cycle(house):
    root = house(sym__a="from lostwax.sym import Expr")
    (root / "sym" / "__init__.py").write_text("from lostwax.sym.a import Expr")
    assert cycles(root) == [["lostwax.sym", "lostwax.sym.a"]]


def test_types_make_no_cycle(house):
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lostwax.sym import b"
    assert cycles(house(sym__a=types, sym__b="from lostwax.sym import a")) == []


@pytest.mark.parametrize("peer", PEER)
def test_each_peer_is_found(house, peer):
    parent, _, leaf = peer.rpartition(".")
    for source in [
        f"import {peer}",
        f"import {peer}.deep as d",
        f"from {peer} import x",
        f"from {parent} import {leaf}",
        f"def f():\n    import {peer}",
        f"import torch\nx = {peer}.deep.thing",
        f"import importlib\nimportlib.import_module('{peer}')",
    ]:
        assert peer_faults(house(fake__mode=source)), source


def test_the_peer_is_welcome_in_interop_and_its_namesakes_everywhere(house):
    root = house(
        interop__to_torch="import torch.export",
        fake__mode="import torch.fx\nimport torch.exporter\nimport torch._C._functorch",
    )
    assert peer_faults(root) == []


@pytest.mark.parametrize("source", ["import torch", "from torch import fx", "import torch.fx as t"])
def test_torch_in_sym_is_found(house, source):
    root = house(sym__expr=f"def f():\n    {source}", fake__mode="import torch")
    (fault,) = torch_in_sym(root)
    assert fault.startswith("lostwax.sym.expr:2 imports torch")
