"""What lostwax keeps: the caches themselves; a scan of the source for containers that change
after the import and are none, each with a reason (containers.toml); a long run of different models,
in which nothing grows beyond its bound; and exports that are right while all is forgotten."""

from __future__ import annotations

import ast
import functools
import gc
import os
import subprocess
import sys
import tomllib
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax import Dim, cache, export, logs
from lostwax.cache import Cache, PerClass, cached, cached_by_identity, list_caches
from tests.source import walk

PACKAGE = Path(__file__).parent.parent / "lostwax"
NEEDING_MORE = ("__main__", "interop.transformers", "llm.decoder", "llm.entries", "llm.past")
"""Modules that are not imported: those need transformers, which is not everywhere, and have no
cache."""
TABLE = tomllib.loads((Path(__file__).parent / "containers.toml").read_text())


# --------------------------------------------------------------------------------------- the caches


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Those of lostwax; what a test adds is gone after it. All modules are imported before: what
    one of them registers must stay."""
    import_all()
    monkeypatch.setattr(cache, "CACHES", dict(cache.CACHES))


def state(name: str) -> cache.CacheState:
    return next(each for each in list_caches() if each.name == name)


def test_a_full_cache_is_emptied() -> None:
    kept = Cache[int, str]("lostwax.tests", "kept", 3)
    table = kept.table
    assert [kept.keep(i, str(i)) for i in range(3)] == ["0", "1", "2"]
    assert table == {0: "0", 1: "1", 2: "2"}
    kept.keep(3, "3")
    assert table == {3: "3"}
    assert kept.table is table
    assert state("tests.kept") == ("tests.kept", 1, 3, None, 4)


def test_a_name_is_of_one_cache() -> None:
    Cache[int, str]("lostwax.tests", "kept", 3)
    with pytest.raises(AssertionError, match=r"two caches are called 'tests\.kept'"):
        Cache[int, str]("lostwax.tests", "kept", 3)


def test_a_class_is_asked_for_once() -> None:
    asked: list[type] = []
    known = PerClass(__name__, "a", lambda cls: asked.append(cls) or cls.__name__)  # type: ignore[func-returns-value]
    assert [known[int], known[int], known[str]] == ["int", "int", "str"]
    assert asked == [int, str]


def test_classes_are_forgotten() -> None:
    known = PerClass(__name__, "b", lambda cls: cls.__mro__)
    seen = []
    for i in range(2500):
        made = type(f"Made{i}", (), {})
        assert known[made][0] is made
        seen.append(weakref.ref(made))
    del made
    gc.collect()
    assert sum(each() is not None for each in seen) <= 1000


class Thing:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("not to be asked")

    __hash__ = None  # type: ignore[assignment]


def test_what_is_found_by_identity_is_held() -> None:
    asked = []

    @cached_by_identity(10)
    def look_at(thing: Thing) -> int:
        asked.append(1)
        return len(asked)

    for i in range(1, 101):  # each would get the id of the one before
        thing = Thing()
        assert look_at(thing) == look_at(thing) == i
    found = state(f"{__name__}.{look_at.__qualname__}")
    assert (found.size, found.bound, found.misses) == (10, 10, 100)


def test_functions_count_hits() -> None:
    @cached(2)
    def double(n: int) -> int:
        return 2 * n

    assert [double(n) for n in (1, 1, 2, 3, 1)] == [2, 2, 4, 6, 2]
    assert state(f"{__name__}.{double.__qualname__}")[1:] == (2, 2, 1, 4)
    cache.empty_caches()
    assert state(f"{__name__}.{double.__qualname__}").size == 0


def test_they_are_told_of() -> None:
    kept = Cache[int, str]("lostwax.tests", "kept", 3000)
    kept.keep(1, "1")
    heading, *rows = logs.describe_caches().splitlines()
    assert heading.split() == ["cache", "size", "bound", "hits", "misses"]
    assert ["tests.kept", "1", "3,000", "-", "1"] in [row.split() for row in rows]


def test_the_log_tells_of_full_ones_and_of_all_at_the_end() -> None:
    program = (
        "from lostwax import logs\nfrom lostwax.cache import Cache\n"
        "kept = Cache('tests', 'kept', 2)\nfor i in range(4): kept.keep(i, i)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LOSTWAX_LOGS": "caches"},
        capture_output=True,
        text=True,
        check=True,
    )
    first, last, *table = run.stderr.splitlines()
    assert first == "lostwax caches: 'tests.kept' is full with 2 entries, and is emptied"
    assert last == "lostwax caches: at the end"
    assert "tests.kept    2     2    -      4" in table


# ---------------------------------------------------------------------------------------- the page


@functools.cache
def import_all() -> None:
    for each in walk_packages(lostwax.__path__, "lostwax.", onerror=lambda _: None):
        if not each.name.endswith(NEEDING_MORE):
            import_module(each.name)


def written_bound(name: str) -> str:
    """As the page has it."""
    counts_hits = state(name).hits is not None
    return (
        f"{state(name).bound:,}{', oldest first' if counts_hits and state(name).bound > 1 else ''}"
    )


def test_the_page_has_every_cache() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    _, _, rest = page.partition("| cache | key | what is kept | bound |\n|---|---|---|---|\n")
    table = rest.partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    ours = [name for name in sorted(cache.CACHES) if not name.startswith("tests.")]
    assert [(name, bound) for name, _, _, bound in rows] == [
        (f"`{name}`", written_bound(name)) for name in ours
    ]
    assert all(key and kept for _, key, kept, _ in rows)


# --------------------------------------------------------------------------------------- the source

WRITING = frozenset(
    ("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem",
     "remove", "setdefault", "update")
)  # fmt: skip
EMPTY = (
    "ByIdentity",
    "Counter",
    "OrderedDict",
    "Seen",
    "defaultdict",
    "deque",
    "dict",
    "list",
    "set",
)
CACHING = ("cache", "lru_cache", "functools.cache", "functools.lru_cache")


def changing(root: Path) -> set[str]:
    """What a package has at module level that may change after the import, and is no cache of the
    house: containers that begin empty, names that functions write to or bind again, functions with
    a cache of Python's."""
    found, has, written = set(), set(), set()
    for path in root.rglob("*.py"):
        nodes, here = walk(ast.parse(path.read_text())), path.relative_to(root).as_posix()
        homes = dict(_imported(nodes))
        written |= {f"{homes.get(name, here)} {name}" for name in _written(nodes)}
        for owner, name, value in _assigned(nodes):
            if not _is_ours(value):
                has.add(f"{here} {name}")
                if _begins_empty(value):
                    found.add(f"{here} {owner}{name}")
        found |= {f"{here} {name}" for name in _cached(nodes)}
    anywhere = {each.rpartition(" ")[2] for each in written if each.rpartition(" ")[2][0] == "."}
    return found | {each for each in has if each in written or f".{each.split()[1]}" in anywhere}


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for each in nodes:
        if isinstance(each, ast.ImportFrom) and each.module:
            home = each.module.replace(".", "/").removeprefix("lostwax/")
            yield from ((alias.name, f"{home}.py") for alias in each.names)


def _assigned(nodes: list[ast.AST]) -> Iterator[tuple[str, str, ast.expr]]:
    """The class, if any, the name and the value of what is assigned at module level."""
    for each in nodes:
        if isinstance(each, (ast.Module, ast.ClassDef)):
            owner = f"{each.name}." if isinstance(each, ast.ClassDef) else ""
            for part in each.body:
                if isinstance(part, (ast.Assign, ast.AnnAssign)) and part.value is not None:
                    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                    for target in targets:
                        if isinstance(target, ast.Name):
                            yield owner, target.id, part.value


def _is_ours(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _called(value) in ("Cache", "PerClass")


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).partition("[")[0].rpartition(".")[2]


def _begins_empty(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return ast.unparse(value) in ("{}", "[]")
    is_container = _called(value).startswith("Weak") or _called(value) in EMPTY
    return is_container and (not value.args or _called(value) == "defaultdict")


def _written(nodes: list[ast.AST]) -> Iterator[str]:
    """Names that functions write to; those of another module (`module.NAME`) with a dot before."""
    for function in nodes:
        if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
            continue
        inside = walk(function)
        bound = {name for each in inside if isinstance(each, ast.Global) for name in each.names}
        local = {each.arg for each in inside if isinstance(each, ast.arg)}
        names = (each for each in inside if isinstance(each, ast.Name))
        local |= {each.id for each in names if isinstance(each.ctx, ast.Store)} - bound
        yield from bound
        for each in inside:
            match each:
                case ast.Subscript(held, ctx=ast.Store() | ast.Del()):
                    pass
                case ast.Call(ast.Attribute(held, way)) if way in WRITING:
                    pass
                case _:
                    continue
            if isinstance(held, ast.Name) and held.id not in local:
                yield held.id
            elif isinstance(held, ast.Attribute) and held.attr.isupper():
                yield f".{held.attr}"


def _cached(nodes: list[ast.AST]) -> Iterator[str]:
    """Functions with a cache of Python's, but those in functions, which go with them."""
    for each in nodes:
        if isinstance(each, (ast.Module, ast.ClassDef)):
            for part in each.body:
                for decorator in getattr(part, "decorator_list", ()):
                    if ast.unparse(decorator).partition("(")[0] in CACHING:
                        yield part.name  # type: ignore[attr-defined]
    for _, name, value in _assigned(nodes):
        if isinstance(value, ast.Call) and ast.unparse(value.func) in CACHING:
            yield name


def test_each_container_that_changes_is_a_cache_or_has_a_reason() -> None:
    listed = [name for kind in TABLE.values() for name in kind["containers"]]
    assert len(listed) == len(set(listed)), "listed twice"
    assert all(kind["reason"] for kind in TABLE.values())
    found = changing(PACKAGE)
    assert not found - set(listed), (
        "these change after the import: make them caches (lostwax.cache), or add them to "
        f"containers.toml under the reason why they do not grow: {sorted(found - set(listed))}"
    )
    assert not set(listed) - found, f"no more there: {sorted(set(listed) - found)}"


def test_the_scan_finds_them(tmp_path: Path) -> None:
    source = """
        from functools import cache, lru_cache
        CONSTANT, KNOWN = 1, {}
        FIXED = {1: 2}
        EMPTY = {}
        WEAK: Any = WeakKeyDictionary()
        HELD = ByIdentity[int, str]()
        LATER = {1: 2}
        ELSEWHERE = {1: 2}
        LISTED = [1]
        IMPORTED = {1}
        CACHE = Cache[int, str]("a", "b", 3)
        count = 0
        class A:
            known = []
            items: list = field(default_factory=list)
            @cache
            def f(self): pass
        @lru_cache(maxsize=3)
        def g(x):
            global count
            LATER[x] = 1
            FIXED.get(x)
            @cache
            def inside(): pass
        def h(FIXED):
            FIXED[1] = 2
            LISTED.append(3)
            CACHE.clear()
        k = cache(h)
    """
    (tmp_path / "inner").mkdir()
    lines = [line[8:] for line in source.splitlines()]
    (tmp_path / "inner" / "a.py").write_text("\n".join(lines))
    (tmp_path / "b.py").write_text(
        "from lostwax.inner.a import IMPORTED\nOTHER = LISTED = {1: 2}\ndef f(a):\n"
        "    a.ELSEWHERE.update(a)\n    a.FIXED.get(1)\n    IMPORTED.add(3)"
    )
    names = [
        "EMPTY",
        "WEAK",
        "HELD",
        "LATER",
        "ELSEWHERE",
        "IMPORTED",
        "LISTED",
        "count",
        "A.known",
        "f",
        "g",
        "k",
    ]
    assert changing(tmp_path) == {f"inner/a.py {name}" for name in names}


# --------------------------------------------------------------------------------------- a long run

CONTAINERS = (dict, list, set, deque, defaultdict, OrderedDict)


def sizes() -> dict[str, int]:
    """How much is in each container that is reached from a module of the package, through others
    and through objects of its own classes."""
    found: dict[str, int] = {}
    seen = {id(vars(each)) for each in list(sys.modules.values()) if hasattr(each, "__dict__")}
    seen |= {id(each.table) for each in cache.CACHES.values() if isinstance(each, Cache)}
    seen |= {id(sys.modules), id(cache.CACHES)}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "lostwax":
            for key, value in list(vars(module).items()):
                if not key.startswith("__"):
                    _measure(value, f"{name}.{key}", seen, found)
    return found


def _measure(value: Any, path: str, seen: set[int], found: dict[str, int]) -> None:
    todo = [(value, path)]
    while todo:
        value, path = todo.pop()
        if id(value) in seen or isinstance(value, (ModuleType, str, int, torch.Tensor, nn.Module)):
            continue
        seen.add(id(value))
        if isinstance(value, CONTAINERS):
            found[path] = len(value)
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            todo += [(v, f"{path}[{k!r:.40}]") for k, v in list(inner)]
        elif isinstance(value, tuple):
            todo += [(each, path) for each in value]
        elif isinstance(value, type):
            if value.__module__.startswith("lostwax"):
                todo += [(v, f"{path}.{k}") for k, v in vars(value).items() if k[:2] != "__"]
        elif type(value).__module__.startswith("lostwax"):
            names = [n for cls in type(value).__mro__ for n in getattr(cls, "__slots__", ())]
            held = {n: getattr(value, n, None) for n in names} | getattr(value, "__dict__", {})
            todo += [(v, f"{path}.{k}") for k, v in held.items()]


def models(count: int) -> Iterator[tuple[Any, tuple[Any, ...], Any]]:
    """Each with sizes, a class, functions and code of its own."""
    for i in range(1, count + 1):
        scope: dict[str, Any] = {"torch": torch, "nn": nn, "seen": []}
        exec(
            f"""
def scale_{i}(x):
    seen.append({i})
    if x.shape[0] == {1000 + i}: raise ValueError
    return torch.relu(x) * {i} + x.view(x.shape[0], -1).sum(1, keepdim=True)

class Model{i}(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer_{i} = nn.Linear({i}, {i + 1})
        self.config_{i} = {{"a": [{i}]}}
    def forward(self, x):
        return scale_{i}(self.layer_{i}(x))[:, : {i}]
""",
            scope,
        )
        shapes = {"x": {0: Dim(f"n{i}", min=2, max=900 + i)}} if i % 2 else None
        yield scope[f"Model{i}"](), (torch.randn(i + 2, i),), shapes


def run(count: int) -> None:
    for model, args, shapes in models(count):
        program = export(model, args, dynamic_shapes=shapes)
        program.run_decompositions()
        torch.testing.assert_close(program.module()(*args), model(*args))


def bind(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    for each in cache.CACHES.values():
        if isinstance(each, Cache):
            monkeypatch.setattr(each, "bound", bound)


@pytest.mark.filterwarnings("ignore")
def test_nothing_grows_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    run(4)
    bind(monkeypatch, 20)
    cache.empty_caches()
    before = sizes()
    run(24)
    gc.collect()
    grown = {
        path: (before.get(path), size)
        for path, size in sizes().items()
        if size > before.get(path, 0)
    }
    assert not grown
    assert all(each.size <= each.bound for each in list_caches())
    assert sum(each.misses > 20 for each in list_caches()) > 10, "most are never full"


@pytest.mark.filterwarnings("ignore")
def test_everything_may_be_forgotten_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bind(monkeypatch, 1)
    run(4)
