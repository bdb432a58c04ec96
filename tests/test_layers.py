"""The layers of CONTRIBUTING.md, held by a scan of the source: layer order, no import cycles, no
forbidden imports. The checks are functions over a package folder, so that each can be shown
to fail on a small tree that breaks it.

Imports inside functions count like any other, and so do those under `if TYPE_CHECKING:`: who knows
another in types alone still cannot be read without it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lostwax"

# What stands in one row is of one height: none of a row imports another of it.
LAYERS = [
    ["cache"],
    ["bytecode", "location"],
    [
        "classes",
        "collector",
        "errors",
        "handlers",
        "identity",
        "logs",
        "namespaces",
        "torch_version",
    ],
    ["branches", "late_imports", "undo"],
    ["sym"],
    ["types"],
    ["memory"],
    ["ops"],
    ["fake"],
    ["ir"],
    ["capture"],
    ["checkpoints", "dialects"],
    ["onnx", "pt2"],
    ["export_cache", "pte"],
    ["backends"],
    ["checking", "interop", "llm"],
    ["profiling", "ray"],
    ["passes"],  # a face: the names of what is in ir
    ["explorer"],
    ["problems"],
    ["cli"],
    ["__init__", "__main__"],
]
HEIGHT = {name: height for height, row in enumerate(LAYERS) for name in row}

# The same for the folders inside of a part. Files beside them may import and be imported by all.
FOLDERS = {
    "backends": [["xnnpack"]],
    "cli": [["models"]],
    "interop": [["transformers"]],
    "ops": [["math"], ["decompositions", "nn", "tensors"]],
    "sym": [["expressions"], ["numbers", "reasoning", "text"]],
    "fake": [["symbolic"], ["composite"]],
    "ir": [
        ["graph", "trace"],
        ["rules"],
        ["run"],
        ["decompose", "unflatten"],
        ["passes", "stages"],
    ],
    "capture": [
        ["aliasing", "python", "shapes", "steps"],
        ["heap"],
        ["state"],
        ["surroundings", "trace"],
        ["control"],
        ["flow", "patches"],
        ["sharded", "strict"],
    ],
    "onnx": [["patterns"], ["operators"]],
    "pt2": [["container"], ["graph"]],
    "pte": [["file"], ["lowering"]],
}

# Modules whose class those that they are made of must know: to import them for types is no cycle.
KNOWN_BELOW = {
    "lostwax.fake.mode": "evaluates by rules, composites and caches, each a function of the mode",
    "lostwax.capture.trace.tracer": "records by handlers, each a function of the tracer",
    "lostwax.sym.env": "makes expressions, and each knows its environment: `a + b` asks it",
}

# What these make: so many modules that know each other, if types count. None may grow.
KNOTS = {"lostwax.capture.trace": 9, "lostwax.fake": 5, "lostwax.sym": 15}

MOST_FILES, MOST_LINES = 16, 700

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
    """The folder or single file of lostwax that a module belongs to: "sym", "errors", ..."""
    return name.split(".")[1] if name != root.name else "__init__"


def imports(name: str, path: Path) -> Iterator[Import]:
    """Everything that the module names as an import, in any form: statements at any depth,
    `import_module("...")`, and `torch.fx.experimental.x` reached through a plain `import torch`."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    yield from _read_imports(path.read_text(), package)


@cache
def _read_imports(text: str, package: str) -> tuple[Import, ...]:
    return tuple(_imports(ast.parse(text), package, types_only=False))


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
        case ast.Attribute(value, name) if (found := _dotted(value)).startswith("torch"):
            return [f"{found}.{name}"] if found.partition(".")[0] == "torch" else []
    return []


def _dotted(node: ast.AST) -> str:
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name):
            return f"{_dotted(value)}.{name}"
    return ""


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def resolve(module: str, known: dict[str, Path]) -> str | None:
    """The module of lostwax that a dotted name means (`lostwax.sym.Expr` is in `lostwax.sym`)."""
    while module and module not in known:
        module = module.rpartition(".")[0]
    return module or None


def house_imports(root: Path) -> dict[str, list[tuple[str, Import]]]:
    """For each module of lostwax, the other modules of lostwax that it imports."""
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


def folder_faults(root: Path) -> list[str]:
    """Imports between folders of a part that go against their order; folders that have none."""
    faults, lost, known = [], [], modules(root)
    for name, found in house_imports(root).items():
        part, here = _folder(known[name], root)
        heights = {f: height for height, row in enumerate(FOLDERS.get(part, ())) for f in row}
        if here and here not in heights:
            lost.append(f"{name}: {here!r} has no place in {part!r}")
            continue
        for to, i in found:
            home, there = _folder(known[to], root)
            is_between = home == part and here and there and here != there
            if is_between and heights.get(there, len(heights)) >= heights[here]:
                faults.append((name, to, i.line))
    return lost + [
        f"{name}:{line} imports {to}, which is not below it" for name, to, line in faults
    ]


def _folder(path: Path, root: Path) -> tuple[str, str]:
    """The part and the folder in it that a file is in; "": beside them."""
    parts = path.relative_to(root).parts
    return parts[0], parts[1] if len(parts) > 2 else ""


def cycles(root: Path, known_below: Iterable[str] = KNOWN_BELOW) -> list[list[str]]:
    """Each knot of modules that import each other, directly or around, in types or not; but for
    types of what is known below."""
    graph = {
        name: {to for to, i in found if to != name and not (i.types_only and to in known_below)}
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


def reader_faults(root: Path) -> list[str]:
    """Who reads bytecode beside the one reader, and the one who writes questions into it."""
    return [
        f"{name}:{i.line} imports {i.module}"
        for name, path in modules(root).items()
        if part_of(name, root) != "bytecode" and name != "lostwax.capture.python.identities"
        for i in imports(name, path)
        if within(i.module, "dis")
    ]


def size_faults(root: Path) -> list[str]:
    """Files that are too long, and folders that have too many."""
    counts = Counter(path.parent.relative_to(root).as_posix() for path in modules(root).values())
    faults = [
        f"{folder} has {count} files"
        for folder, count in sorted(counts.items())
        if count > MOST_FILES
    ]
    for name, path in modules(root).items():
        lines = len(path.read_text().splitlines())
        if lines > MOST_LINES:
            faults.append(f"{name} has {lines} lines")
    return faults


# ------------------------------------------------------------------------------- lostwax itself


def test_a_folder_imports_only_folders_below_it():
    assert layer_faults(PACKAGE) == []


def test_no_import_cycles():
    assert cycles(PACKAGE) == []


def test_knots_of_types_do_not_grow():
    found = {_common_package(knot): len(knot) for knot in cycles(PACKAGE, known_below=())}
    assert found == KNOTS


def _common_package(names: list[str]) -> str:
    parts = [name.split(".")[:-1] for name in names]
    same = takewhile(lambda column: len({*column}) == 1, zip(*parts, strict=False))
    return ".".join(column[0] for column in same)


def test_folders_in_a_part_are_imported_in_one_direction():
    assert folder_faults(PACKAGE) == []


def test_files_and_folders_are_of_a_size_that_one_can_read():
    assert size_faults(PACKAGE) == []


def test_the_peer_is_not_imported():
    assert peer_faults(PACKAGE) == []


def test_bytecode_is_read_in_one_place():
    assert reader_faults(PACKAGE) == []


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
    root = house(pt2__encode="", onnx__emit="from lostwax.pt2 import encode")
    assert layer_faults(root) == [
        "lostwax.onnx.emit:1 imports lostwax.pt2.encode, which is not below it"
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


def test_a_cycle_of_types_is_found(house):
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lostwax.sym import b"
    root = house(sym__a=types, sym__b="from lostwax.sym import a")
    assert cycles(root) == [["lostwax.sym.a", "lostwax.sym.b"]]


@pytest.mark.parametrize("known", KNOWN_BELOW)
def test_what_is_known_below_is_so_in_types_alone(house, known):
    part, _, name = known.removeprefix("lostwax.").rpartition(".")
    upper = f"from lostwax.{part} import below"
    files = {f"{part}.{name}".replace(".", "__"): upper}
    below = f"{part}.below".replace(".", "__")
    types = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {known} import A"
    assert cycles(house(**files, **{below: types})) == []
    assert cycles(house(**files, **{below: f"from {known} import A"})) != []


def test_an_import_against_the_order_of_folders_is_found(house):
    root = house(
        pt2__limits="",
        pt2__container__weights="from lostwax.pt2.graph import encode\nimport lostwax.pt2.limits",
        pt2__graph__encode="from lostwax.pt2 import limits",
        pt2__other__a="",
        pt2__whole="from lostwax.pt2.graph import encode",
    )
    assert folder_faults(root) == [
        "lostwax.pt2.other: 'other' has no place in 'pt2'",
        "lostwax.pt2.other.a: 'other' has no place in 'pt2'",
        "lostwax.pt2.container.weights:1 imports lostwax.pt2.graph.encode, which is not below it",
    ]


def test_a_long_file_and_a_full_folder_are_found(house):
    files = {f"sym__a{i}": "" for i in range(MOST_FILES)}
    root = house(sym__expr="1\n" * (MOST_LINES + 1), **files)
    assert size_faults(root) == ["sym has 18 files", "lostwax.sym.expr has 701 lines"]


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


def test_another_reader_of_bytecode_is_found(house):
    root = house(bytecode__steps="import dis", capture__flow="def f():\n    from dis import opmap")
    (fault,) = reader_faults(root)
    assert fault.startswith("lostwax.capture.flow:2 imports dis")


@pytest.mark.parametrize("source", ["import torch", "from torch import fx", "import torch.fx as t"])
def test_torch_in_sym_is_found(house, source):
    root = house(sym__expr=f"def f():\n    {source}", fake__mode="import torch")
    (fault,) = torch_in_sym(root)
    assert fault.startswith("lostwax.sym.expr:2 imports torch")
