"""What is known of an operator stands in its family's file in `lostwax/ops/`: a scan of the rest of
the package for operators by name.

To call one is fine where that is a file's work. To compare with one, or to collect some, is to know
something of it that its record does not say; the few such places have a reason in one_place.toml.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from lostwax.ops.traits import Trait

PACKAGE = Path(__file__).parents[2] / "lostwax"
TABLE = tomllib.loads((Path(__file__).parent / "one_place.toml").read_text())
ATEN = ("aten", "_aten")
BY_TEXT = re.compile(r"(torch\.ops\.)?aten(::|\.)[a-z_]")
SEEN_THROUGH = ("getattr", "operator")
"""What is made of an operator by these is as good as the operator."""


class Uses(ast.NodeVisitor):
    """Where a file calls operators, or hands them to a call; and where it speaks of them
    otherwise: in comparisons, in tables, under names of its own."""

    def __init__(self, tree: ast.AST) -> None:
        self.called: set[str] = set()
        self.told: set[str] = set()
        self._scope: list[str] = []
        self._parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        self.visit(tree)

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._scope.append(node.name)
        for child in node.body:
            self.visit(child)
        self._scope.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _enter

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in ATEN and isinstance(node.ctx, ast.Load):
            self._note(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if ast.unparse(node) == "torch.ops.aten":
            self._note(node)
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        is_text = isinstance(node.value, str) and BY_TEXT.match(node.value)
        if is_text and not isinstance(self._parents[node], ast.Expr):  # a docstring
            self.told.add(self._here())

    def _note(self, node: ast.AST) -> None:
        parent = self._parents[node]
        while isinstance(parent, (ast.Attribute, ast.IfExp)) or _is_seen_through(parent, node):
            node, parent = parent, self._parents[parent]
        if isinstance(parent, ast.keyword):
            parent = self._parents[parent]
        if isinstance(parent, ast.Expr):  # a comment on the table above it
            return
        (self.called if isinstance(parent, ast.Call) else self.told).add(self._here())

    def _here(self) -> str:
        return ".".join(self._scope) or "-"


def _is_seen_through(parent: ast.AST, node: ast.AST) -> bool:
    is_call = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name)
    return is_call and parent.func.id in SEEN_THROUGH and node in parent.args  # type: ignore[attr-defined]


def scan(root: Path) -> tuple[set[str], set[str]]:
    """The files that call operators; and the functions, with their files, that tell of them."""
    called, told = set(), set()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if name.startswith("ops/"):
            continue
        uses = Uses(ast.parse(path.read_text()))
        if uses.called:
            called.add(name)
        told.update(f"{name} {each}" for each in uses.told)
    return called, told


def listed(kind: str) -> Iterator[str]:
    for section in TABLE[kind].values():
        assert section["reason"]
        yield from section["uses"]


def test_operators_are_known_in_one_place() -> None:
    called, told = scan(PACKAGE)
    for kind, found, instead in (
        ("calls", called, "is it this file's work to call operators?"),
        ("tells", told, "say it in the operator's family file, by a trait (ops/traits.py)"),
    ):
        uses = list(listed(kind))
        assert len(uses) == len(set(uses)), "listed twice"
        new = [each for each in found if not any(_is_in(each, use) for use in uses)]
        assert not new, f"{instead} Else: one_place.toml. {new}"
        gone = [use for use in uses if not any(_is_in(each, use) for each in found)]
        assert not gone, f"no more there: {gone}"


def _is_in(found: str, use: str) -> bool:
    return found.startswith(use) if use.endswith("/") else found == use


def test_the_scan_finds_them(tmp_path: Path) -> None:
    source = '''
        """aten.mm.default in words is fine."""
        KNOWN = frozenset((aten.mm.default, aten.bmm.default))
        VIEW = operator(torch.ops.aten.view.default)
        def calls(tracer, x):
            return tracer.call(aten.clone.default, aten.mm.default(x, x), key=aten.mul.Tensor)
        class Tracer:
            def compares(self, func):
                return func is aten.detach.default
            def by_name(self, func):
                return str(func) in ("aten.mm.default", "aten::mm")
            def by_getattr(self, func):
                return func is getattr(aten.random_, "from")
            def by_record(self, record):
                return record is operator(aten.mm.default)
            def chooses(self, func, x):
                return self.call(aten.mul.Tensor if x else aten.mul_.Tensor, x)
        def strips(name):
            return name.removeprefix("aten::")
    '''
    lines = [line[8:] for line in source.splitlines()]
    (tmp_path / "ops").mkdir()
    for file in ("a.py", "ops/b.py"):
        (tmp_path / file).write_text("\n".join(lines))
    called, told = scan(tmp_path)
    assert called == {"a.py"}
    names = ("-", *(f"Tracer.{n}" for n in ("compares", "by_name", "by_getattr", "by_record")))
    assert told == {f"a.py {name}" for name in names}
    uses = Uses(ast.parse("\n".join(lines)))
    assert uses.called == {"calls", "Tracer.chooses"}


def test_each_trait_is_had_and_asked_for() -> None:
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "traits.py")
    found = {trait.name: list[bool]() for trait in Trait}
    for use in re.finditer(r"\bTrait\.(\w+)", text):
        before = text[max(0, use.start() - 200) : use.start()]
        found[use[1]].append(re.search(r"mark(?:_\w+)?\(\s*$", before) is not None)
    for trait in Trait:
        uses = found[trait.name]
        assert any(uses), f"no operator has {trait}"
        assert not all(uses), f"nobody asks for {trait}"
