"""Generators written out, where data decide how far a loop goes over one: beside the generator
stands a function that gives its values to another one, which is the body of the loop.

    def numbers(n):                        def given(give, variables):
        …                                      n = variables.pop("n"); …
        yield v                                if give(v): return
        …                                      …

    for x in numbers(n): …                 def body(item):
                                               x = item; …       # break: return True
                                               return False      # continue: the same
                                           is left = hooks.go_through([numbers(n)], body)

Must not know when this is wanted.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Sequence
from itertools import count
from typing import Any

from lostwax.capture.flow.rewriting.exits import (
    LOOPS,
    NotRewritable,
    assign,
    hook,
    hook_value,
    load,
    locate,
    locate_all,
    lower_exits,
    make_source,
    never_ends,
)
from lostwax.capture.flow.rewriting.liveness import note_live
from lostwax.capture.flow.rewriting.names import (
    GIVE,
    GIVEN,
    ITEM,
    LASTING,
    MOVED,
    OVER,
    RETURNED,
    TRUTH,
)
from lostwax.capture.flow.rewriting.picks import Place, place_of
from lostwax.capture.flow.rewriting.regions import holds_yield, spell_super
from lostwax.capture.flow.rewriting.scopes import SCOPES, Names, find_stored, walk_own
from lostwax.capture.python.trees import walk

Block = list[ast.stmt]


def write_out(function: ast.FunctionDef, goes_through: bool) -> ast.FunctionDef:
    """The function that gives what a generator yields. `goes_through`: are there loops over other
    generators in it?"""
    given = copy.deepcopy(function)
    arguments = given.args
    named = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs]
    names = [each.arg for each in (*named, arguments.kwarg) if each is not None]
    for each in given.body:
        spell_super(each, names[0] if names else None)
    giving = _Giving()
    body = [new for each in given.body for new in giving.visit(each)]
    lasts = goes_through or any(isinstance(each, ast.Try) for each in walk_own(function))
    variables = LASTING if lasts else GIVEN
    taken = [assign(name, _call_pop(variables, name)) for name in names]
    ended: Block = [] if never_ends(body) else [ast.Return(ast.Constant(False))]
    if not (ended or giving.returns):  # it ends where it is left, and nowhere else
        for each in giving.left:
            each.value = None
    given.body = [*taken, *body, *ended]
    given.name, given.decorator_list, given.returns = f"{MOVED}given", [], None
    given.args = _make_arguments(GIVE, variables)
    given.lineno = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    locate_all([*taken, *ended], function)
    if not giving.left or any(map(holds_yield, given.body)):
        raise NotRewritable("it yields within an expression")
    return given


def _call_pop(variables: str, name: str) -> ast.expr:
    return ast.Call(ast.Attribute(load(variables), "pop", ast.Load()), [ast.Constant(name)], [])


def _make_arguments(*names: str) -> ast.arguments:
    return ast.arguments([], [ast.arg(each) for each in names], None, [], [], None, [])


class _Giving(ast.NodeTransformer):
    """Gives a list of statements for each."""

    def __init__(self) -> None:
        self.left: list[ast.Return] = []
        self.returns = False
        self._numbers = count(1)

    def visit(self, node: Any) -> Any:
        if isinstance(node, SCOPES):
            return [node]
        if isinstance(node, (ast.With, ast.Try)) or type(node).__name__ == "TryStar":
            _check_block(node)
        if isinstance(node, ast.Return):
            self.returns = True
            node = ast.copy_location(ast.Expr(node.value or ast.Constant(None)), node)
            return [node, locate(ast.Return(ast.Constant(False)), node)]
        if isinstance(node, (ast.Expr, ast.Assign)) and (value := node.value):
            if isinstance(value, ast.Yield):
                return self._give(value.value, node)
            if isinstance(value, ast.YieldFrom) and isinstance(node, ast.Expr):
                return self._give_all(value.value, node)
        self._visit_blocks(node)
        return [node]

    def _visit_blocks(self, node: Any) -> None:
        inner = (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))
        for holder in (node, *inner):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(holder, name, None)
                if isinstance(block, list):
                    setattr(holder, name, [new for each in block for new in self.visit(each)])

    def _give(self, value: ast.expr | None, at: Any) -> Block:
        self.left.append(ast.Return(ast.Constant(True)))
        call = ast.Call(load(GIVE), [value or ast.Constant(None)], [])
        found: Block = [ast.If(call, [self.left[-1]], [])]
        if isinstance(at, ast.Assign):  # a loop sends nothing
            found.append(ast.Assign(at.targets, ast.Constant(None)))
        locate_all(found, at)
        return found

    def _give_all(self, values: ast.expr, at: ast.stmt) -> Block:
        name = f"{ITEM}given {next(self._numbers)}"
        loop = ast.For(ast.Name(name, ast.Store()), values, self._give(load(name), at), [])
        locate_all([loop], at)
        return [loop]


def _check_block(node: Any) -> None:
    """A generator that a loop leaves ends with an exception, which these would see; and they would
    see those of the loop's body, which a generator does not."""
    handlers = getattr(node, "handlers", ())
    if isinstance(node, ast.Try) and not handlers and not any(map(holds_yield, node.finalbody)):
        return
    if holds_yield(node):
        raise NotRewritable("it yields in a `with`, or in a `try` that has more than a `finally`")


# ------------------------------------------------------------------------------------ for loops


def move_bodies(
    function: ast.FunctionDef, places: Collection[Place], outside: Names
) -> list[ast.FunctionDef]:
    """Make functions of the bodies of loops that go over what stands in these places, and return
    them, the innermost first. `outside`: the names that are globals."""
    if not places and not any(hasattr(each, "is_through") for each in walk_own(function)):
        return []
    moving = _Moving(function, places, outside)
    function.body = moving.go_through(function.body, function)
    return moving.made


class _Moving(ast.NodeTransformer):
    def __init__(
        self, function: ast.FunctionDef, places: Collection[Place], outside: Names
    ) -> None:
        self._places, self._outside, self._numbers = places, outside, count(1)
        self.made: list[ast.FunctionDef] = []
        first = [*function.args.posonlyargs, *function.args.args][:1]
        self._first = first[0].arg if first else None
        self._line = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        self._kept = self._find_kept(function)
        said = [n for n in walk_own(function) if isinstance(n, (ast.Global, ast.Nonlocal))]
        around = {name for each in said for name in each.names}
        arguments = {n.arg for n in walk(function.args) if isinstance(n, ast.arg)}
        blocks = (ast.With, ast.Try)
        self._has_blocks = any(isinstance(each, blocks) for each in walk_own(function))
        self._own = [{*find_stored(function.body), *arguments} - around]
        """The variables of each function around."""
        self._bound: list[set[str]] = []
        """The variables of each function around that functions in it set."""
        self._begin: list[Block] = []
        """What each function around does at first."""

    def _find_kept(self, function: ast.FunctionDef) -> dict[tuple[int, int], set[str]]:
        """The variables that are still read at the end of a turn, by the places of loops."""
        other = copy.deepcopy(function)
        lower_exits(other)
        note_live(other)
        found: dict[tuple[int, int], set[str]] = {}
        for each in walk_own(other):
            if hasattr(each, "live_inside"):
                loop: Any = each
                names = found.setdefault((loop.lineno, loop.col_offset), set())
                names |= loop.live | loop.live_inside
        return found

    def go_through(self, block: Block, function: ast.FunctionDef) -> Block:
        """The body of a function, with all that functions in it set as variables of its own."""
        self._bound.append(set())
        self._begin.append([])
        found = self.visit(ast.Module(block, [])).body
        said = [n for n in walk_own(function) if isinstance(n, (ast.Global, ast.Nonlocal))]
        others = {n.arg for n in walk(function.args) if isinstance(n, ast.arg)}
        others |= {name for each in said for name in each.names} | self._outside
        own: Block = [_name_variable(name) for name in sorted(self._bound.pop() - others)]
        own += self._begin.pop()
        locate_all(own, function)
        begin = ast.get_docstring(function, clean=False) is not None
        return [*found[:begin], *own, *found[begin:]]

    def visit(self, node: Any) -> Any:
        return node if isinstance(node, SCOPES) else super().visit(node)

    def visit_For(self, loop: Any) -> Any:
        over = loop.iter
        is_meant = hasattr(over, "end_lineno") and place_of(over) in self._places
        if not (is_meant or hasattr(over, "is_through")) or any(map(holds_yield, loop.body)):
            return self.generic_visit(loop)
        n = next(self._numbers)
        kept = self._kept.get((loop.lineno, loop.col_offset), set())
        stored = find_stored([loop.target, *loop.body])
        names = {each for each in stored if each in kept or each.startswith(RETURNED)}
        given, is_left, returned = f"{ITEM}given in {n}", f"{TRUTH}of leaving {n}", f"{RETURNED}{n}"
        exits = _Exits(f"{RETURNED}value {n}", returned)
        body = [new for each in loop.body for new in exits.visit(each)]
        if exits.returns:
            names |= {exits.value, returned} if exits.breaks else {exits.value}
        for each in body:
            spell_super(each, self._first)
        function = self._make(f"{MOVED}body {n}", given, names, loop)
        target: ast.stmt = ast.Assign([loop.target], load(given))
        body = [target, *body, ast.Return(ast.Constant(False))]
        self._bound[-1] |= names - self._outside
        self._own.append({given, *stored} - names)
        function.body += self.go_through(body, function)
        self._own.pop()
        locate_all([target, function.body[-1]], loop)
        self.made.append(function)
        holder, is_held = f"{OVER}{n} and gives", False
        found: Block = [function, assign(holder, ast.List([make_source(over)], ast.Load()))]
        if isinstance(over, ast.Name) and self._is_last(over.id, kept):
            found.append(ast.Delete([ast.Name(over.id, ast.Del())]))  # nobody else has it then
            is_held = exits.breaks or self._has_blocks
        call = hook("go_through", load(holder), load(function.name), ast.Constant(is_held))
        found.append(assign(is_left, locate(call, over)))
        if exits.returns:
            self._begin[-1] += [
                assign(returned, ast.Constant(False)),
                assign(exits.value, hook_value("nothing")),
            ]
            asked = returned if exits.breaks else is_left
            found.append(ast.If(load(asked), [ast.Return(load(exits.value))], []))
        if loop.orelse:
            orelse = [self.visit(each) for each in loop.orelse]
            left = [new for each in orelse for new in (each if isinstance(each, list) else [each])]
            found.append(ast.If(load(is_left), [ast.Pass()], left))
        locate_all(found, loop)
        function.lineno, function.col_offset = self._line, 0
        return found

    def _is_last(self, name: str, kept: set[str]) -> bool:
        """Is a variable of the function itself not read any more?"""
        return name in self._own[-1] and name not in {*kept, *self._bound[-1]}

    def _make(self, name: str, given: str, names: set[str], loop: ast.For) -> ast.FunctionDef:
        around, outside = sorted(names - self._outside), sorted(names & self._outside)
        first: Block = [ast.Nonlocal(around)] if around else []
        first += [ast.Global(outside)] if outside else []
        function = ast.FunctionDef(name, _make_arguments(given), first, [], None)
        function.type_params = []  # type: ignore[attr-defined]
        locate_all([function], loop)
        return function


def _name_variable(name: str) -> ast.stmt:
    """Make it a variable of the function, which is not set."""
    return ast.AnnAssign(ast.Name(name, ast.Store()), ast.Constant(None), None, 1)


class _Exits(ast.NodeTransformer):
    """What leaves a loop leaves the function that is its body. Gives a list for each statement."""

    def __init__(self, value: str, returned: str) -> None:
        self.value, self._returned = value, returned
        self.returns = self.breaks = False
        self._inside = 0

    def visit(self, node: Any) -> Any:
        if isinstance(node, SCOPES):
            return [node]
        if isinstance(node, ast.Return):
            self.returns = True
            result = node.value or ast.Constant(None)
            found = [assign(self.value, result), assign(self._returned, ast.Constant(True))]
            return self._leave(node, True, found)
        if isinstance(node, (ast.Break, ast.Continue)) and not self._inside:
            self.breaks |= isinstance(node, ast.Break)
            return self._leave(node, isinstance(node, ast.Break), [])
        inner = (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))
        for holder in (node, *inner):
            for name in ("asking", "body", "orelse", "finalbody"):
                if isinstance(block := getattr(holder, name, None), list):
                    is_loop = isinstance(node, LOOPS) and name == "body"
                    self._inside += is_loop
                    setattr(holder, name, [new for each in block for new in self.visit(each)])
                    self._inside -= is_loop
        return [node]

    def _leave(self, node: ast.stmt, is_left: bool, before: Sequence[ast.stmt]) -> Block:
        found = [*before, ast.Return(ast.Constant(is_left))]
        locate_all(found, node)
        return found
