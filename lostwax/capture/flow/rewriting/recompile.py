"""Functions with other code: those in which a decision depends on data, with hooks in them.

The statements of the file that hold them are compiled again, with only these functions changed,
and the functions that exist get the new code: decorators, closures, `super()` and defaults stay as
they are. A function whose source cannot be had, or is another one than its code, keeps its code.
Must not know what the hooks do.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from itertools import count, product
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple

from lostwax.cache import Cache, cached
from lostwax.capture.flow.rewriting.appends import append_in_place, ask_for_ends, guard_loops
from lostwax.capture.flow.rewriting.exits import HOOKS, NotRewritable, assign, locate, lower_exits
from lostwax.capture.flow.rewriting.expressions import take_apart
from lostwax.capture.flow.rewriting.giving import move_bodies, write_out
from lostwax.capture.flow.rewriting.liveness import note_live
from lostwax.capture.flow.rewriting.names import GENERATOR, MOVED
from lostwax.capture.flow.rewriting.options import (
    add_copies,
    hand_back_results,
    receive_results,
    write_for_options,
)
from lostwax.capture.flow.rewriting.picks import (
    Pick,
    Place,
    find_element,
    find_stored_element,
    mark_elements,
    place_of,
)
from lostwax.capture.flow.rewriting.raises import (
    give_raised,
    hear_raises,
    leave_by_raises,
    lower_raises,
    mark_raising_calls,
    name_managers,
    write_raises,
    write_suppress,
)
from lostwax.capture.flow.rewriting.regions import add_hooks, holds_yield, mark_made
from lostwax.capture.flow.rewriting.scopes import (
    COMPREHENSIONS,
    SCOPES,
    Globals,
    Meanings,
    Names,
    Path,
    Shadows,
    walk_own,
)
from lostwax.capture.python.identities import ask_identities
from lostwax.capture.python.replaced_text import compile_tree, name_calls, replaced
from lostwax.capture.python.trees import fill_places, walk
from lostwax.collector import list_functions

FunctionKey = tuple[str, int, str]
"""A function's file, first line and name, which for a `lambda` says where it begins."""
_Path = tuple[tuple[str, int], ...]
"""The names and first lines of the functions around one, and its own."""


class Plan(NamedTuple):
    """What is to be changed in a function."""

    extended: frozenset[tuple[int, int]] = frozenset()
    """The places of each `if` whose sides go on to the end of the function."""
    growing: frozenset[tuple[int, int, str]] = frozenset()
    """What is known of loops that append to lists (`appends.py`)."""
    lists: frozenset[str] = frozenset()
    """The variables of these lists."""
    dicts: frozenset[str] = frozenset()
    """The variables of dicts and sets of which data decide the keys."""
    picks: tuple[Pick, ...] = ()
    """Where data pick an element."""
    apart: tuple[tuple[str, int], ...] = ()
    """The variables that data make one thing or another, and of how many."""
    receives: bool = False
    """May a call return such a thing?"""
    stores: frozenset[Place] = frozenset()
    """Where data decide which element is set."""
    ends: frozenset[Place] = frozenset()
    """What loops go over of which data decide where it ends."""
    named_calls: frozenset[Place] = frozenset()
    """The calls whose results get a variable for that."""
    gives: bool = False
    """Is it a generator that is to be written out?"""
    through: frozenset[Place] = frozenset()
    """What loops go over of which generators are written out."""
    raises: bool = False
    """Does it give back what it raises?"""
    raising_calls: frozenset[tuple[Place, int]] = frozenset()
    """The calls of functions that do, and how many exceptions these may be."""


Plans = Mapping[FunctionKey, Plan]
"""The functions to change."""


class Hooks:
    """What functions with other code call, by its methods."""


_ANY_HOOKS = Hooks()


def key_of(code: CodeType) -> FunctionKey:
    return code.co_filename, code.co_firstlineno, _find_label(code)


def rewrite(plans: Plans, hooks: Hooks) -> list[tuple[FunctionType, CodeType]]:
    """The functions to change, with their new codes. Raises `NotRewritable`."""
    found: list[tuple[FunctionType, CodeType]] = []
    for file in dict.fromkeys(key[0] for key in plans):
        own = {key: plan for key, plan in plans.items() if key[0] == file}
        found += _rewrite_file(file, own, hooks)
    return found


def find_obstacle(key: FunctionKey, plan: Plan) -> NotRewritable | None:
    """Why a function cannot be changed so; None if it can."""
    try:
        rewrite({key: plan}, _ANY_HOOKS)
    except NotRewritable as reason:
        return reason
    return None


def picks_element(key: FunctionKey, asked: Place) -> bool:
    """Does an expression in a function pick an element?"""
    return _finds(find_element, key, asked)


def stores_element(key: FunctionKey, asked: Place) -> bool:
    """Does a statement in a function set one?"""
    return _finds(find_stored_element, key, asked)


def _finds(find: Callable[[ast.AST, Place], Any], key: FunctionKey, asked: Place) -> bool:
    try:
        tree = _parse(key[0], [key[1]])
    except NotRewritable:
        return False
    functions = (n for n in walk(tree) if isinstance(n, ast.FunctionDef))
    own = (n for n in functions if (_first_line(n), n.name) == key[1:])
    return any(find(each, asked) is not None for each in own)


def _rewrite_file(file: str, plans: Plans, hooks: Hooks) -> list[tuple[FunctionType, CodeType]]:
    functions = list_functions(file)
    written = _find_written(file, plans, Globals([each.__globals__ for each in functions]))
    lambdas: dict[tuple[str, int], CodeType] = {}
    for path, code in written.lambdas:
        lambdas[path[-1]] = put_hooks(code, hooks, lambdas)
    codes = _walk_codes(written.compiled)
    new = {path: put_hooks(code, hooks, lambdas) for path, code in codes}
    new |= {path: lambdas[path[-1]] for path in written.wanted if path[-1] in lambdas}
    plain, wanted = written.plain, written.wanted
    around = {path[:i] for path in wanted for i in range(1, len(path) + 1)}
    # A function within another is made again by each call of that.
    around = {path for path in around if plain[path].co_flags & _OF_FUNCTION}
    return [*_find_functions(functions, around, wanted, plain, new)]


class _Recompiled(NamedTuple):
    """A file with other functions."""

    plain: dict[_Path, CodeType]
    """Its own codes."""
    wanted: set[_Path]
    """Of the functions that are others."""
    compiled: CodeType
    """The file, without hooks."""
    lambdas: list[tuple[_Path, CodeType]]
    """Those that are others, the inner ones first, which the file has as they were."""
    answers: Mapping[Path, Any]
    """What names meant."""


def _find_written(file: str, plans: Plans, named: Globals) -> _Recompiled:
    """The file with other functions; the same as before, if nothing that it depends on is another.
    (A plan is tried before it is carried out, and each attempt carries out those of the last.)"""
    if file in replaced:
        return _write(file, plans, named)
    text = "".join(linecache.getlines(file)).encode("utf-8", "surrogatepass")
    key = file, blake2b(text).digest(), frozenset(plans.items())
    found = _WRITTEN.table.get(key)
    if found is None or not named.answer_as(found.answers):
        found = _WRITTEN.keep(key, _write(file, plans, named))
    return found


_WRITTEN = Cache[Any, _Recompiled](__name__, "writes", 256)


def _write(file: str, plans: Plans, named: Globals) -> _Recompiled:
    tree = _parse(file, [line for _, line, _ in plans])
    plain = dict(_walk_codes(compile_tree(file, tree)))
    wanted = {path for path, code in plain.items() if key_of(code) in plans}
    lambdas: list[tuple[_Path, CodeType]] = []
    shadows = Shadows(tree, named)
    for path in sorted(wanted, key=len, reverse=True):  # those in others first
        if is_lambda(plain[path]):
            plan = plans[key_of(plain[path])]
            lambdas.append((path, rewrite_lambda(tree, path, plain, plan, shadows)))
    left = {(line, name) for _, line, name in plans}
    left -= {path[-1][::-1] for path, _ in lambdas}
    for node in walk(tree):
        if isinstance(node, SCOPES) and not isinstance(node, (ast.Lambda, ast.ClassDef)):
            at = _first_line(node), node.name
            if at in left:
                left.remove(at)
                rewrite_function(node, plans[file, *at], shadows.find(node))
    if left:
        raise NotRewritable("its source is not the one that runs")
    fill_places(tree)
    return _Recompiled(plain, wanted, compile_tree(file, tree), lambdas, named.answers)


def _parse(file: str, lines: list[int]) -> ast.Module:
    """The file, without what cannot matter to the functions in these lines; or if it is more than
    Python (a page with code in it), the functions that begin there."""
    text = linecache.getlines(file)
    if not text:
        raise NotRewritable("its source is not there; that of a file or a notebook is")
    source = "".join(text)
    statements = _outline(source)
    if statements is None:
        return name_calls(file, _parse_functions(text, lines))
    text = source.split("\n")
    wanted = [*lines, *(number for number, each in enumerate(text, 1) if "global" in each)]
    kept = [""] * len(text)
    for begin, end, is_apart in statements:
        if not is_apart or any(begin < line <= end for line in wanted):
            kept[begin:end] = text[begin:end]
    return name_calls(file, ast.parse("\n".join(kept)))


@cached(64)
def _outline(source: str) -> list[tuple[int, int, bool]] | None:
    """The statements of a file: the last line of the one before, the own last line, and whether it
    can be left out; those that share a line are one. None if the file is more than Python. (One
    capture asks several times, and a file may be long.)"""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return None
    found, last = list[tuple[int, int, bool]](), 0
    for each in body:
        begin, is_apart = last, isinstance(each, _APART)
        if each.lineno == last:
            begin, _, other = found.pop()
            is_apart = is_apart and other
        last = each.end_lineno or last
        found.append((begin, last, is_apart))
    return found


_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Expr)
"""What can stand in a file without a word on how other functions are compiled. (An import has one:
what is called of a module is no method.)"""


def _parse_functions(text: list[str], lines: list[int]) -> ast.Module:
    found = ast.Module([], [])
    for line in lines:
        try:
            block = ast.parse(textwrap.dedent("".join(inspect.getblock(text[line - 1 :]))))
        except SyntaxError:
            raise NotRewritable("its source is not the one that runs") from None
        found.body += ast.increment_lineno(block, line - 1).body
    return found


def _find_functions(
    functions: list[FunctionType],
    around: set[_Path],
    wanted: set[_Path],
    plain: dict[_Path, CodeType],
    new: dict[_Path, CodeType],
) -> Iterator[tuple[FunctionType, CodeType]]:
    by_key = {key_of(plain[path]): path for path in around}
    found, others = set[_Path](), set[_Path]()
    for each in functions:
        code = each.__code__
        path = by_key.get(key_of(code))
        # One within another has hooks already where an earlier try made it and left it.
        if path is None or _has_hooks(code):
            continue
        if code.co_freevars == new[path].co_freevars and (
            _is_same(code, plain[path])
            or any(_is_same(code, ask_identities(plain[path], *ways)) for ways in _WAYS)
        ):
            found.add(path)
            yield each, new[path]
        else:  # pytest has rewritten it; or it is from before the file was changed
            others.add(path)
    if (others - found) & wanted:
        raise NotRewritable("its source is not the one that runs")


_WAYS = [*product((False, True), repeat=2)]
"""How code asks of what C does with our objects."""


def _has_hooks(code: CodeType) -> bool:
    return any(
        _has_hooks(each) if isinstance(each, CodeType) else isinstance(each, Hooks)
        for each in code.co_consts
    )


def _is_same(code: CodeType, other: CodeType) -> bool:
    """Is it compiled from the same source?"""
    if code.co_varnames != other.co_varnames or code.co_names != other.co_names:
        return False
    if code.co_code != other.co_code or len(code.co_consts) != len(other.co_consts):
        return False
    return all(map(_is_same_constant, code.co_consts, other.co_consts))


def _is_same_constant(one: Any, other: Any) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _is_same(one, other)
    if type(one) is not type(other):
        return False
    return one == other if isinstance(one, frozenset) else repr(one) == repr(other)


_OF_FUNCTION = 2  # CO_NEWLOCALS
_NONE: Mapping[tuple[str, int], CodeType] = MappingProxyType({})


def rewrite_function(function: Any, plan: Plan, meanings: Meanings) -> None:
    """Rewrite the tree of a function, in which names mean this."""
    if isinstance(function, ast.AsyncFunctionDef):
        raise NotRewritable("it is a coroutine")
    given = write_out(function, bool(plan.through)) if plan.gives else None
    own = list(walk_own(function))
    outside = frozenset(name for node in own if isinstance(node, ast.Global) for name in node.names)
    append_in_place(function)
    mark_elements(function, dict(plan.picks))
    for place in plan.stores:
        find_stored_element(function, place).is_put = True
    for node in own if plan.named_calls or plan.through else ():
        at = place_of(node) if isinstance(node, (ast.Call, *COMPREHENSIONS)) else None
        if at in plan.named_calls:
            node.is_named = True  # type: ignore[attr-defined]
        if at in plan.through or (plan.through and isinstance(node, ast.GeneratorExp)):
            node.is_through = True  # type: ignore[attr-defined]
    mark_raising_calls(function, dict(sorted(plan.raising_calls)))
    for each in take_apart(function, meanings):
        rewrite_function(each, Plan(gives=bool(plan.through)), meanings)
    ask_for_ends(function, plan.ends)
    bodies = move_bodies(function, plan.through, outside)
    if bodies and (plan.raises or plan.raising_calls):
        raise NotRewritable("a loop in it goes over a generator, and data raise exceptions")
    for each in (*bodies, function):
        _lower(each, plan, meanings, outside)
    if given is not None:
        rewrite_function(given, plan._replace(gives=False), meanings)
        has_text = ast.get_docstring(function, clean=False) is not None
        function.body.insert(has_text, given)


def _lower(function: ast.FunctionDef, plan: Plan, meanings: Meanings, outside: Names) -> None:
    """… whose expressions are taken apart."""
    if plan.receives:
        receive_results(function, dict(plan.apart))
    function.body = write_suppress(hear_raises(write_raises(function.body)), meanings)
    apart = add_copies(function, dict(plan.apart))
    if apart:
        write_for_options(function, apart)
    function.body = name_managers(function.body, count(1), plan.raises)
    function.body = lower_raises(function.body, count(1))
    guard_loops(function, plan.growing)
    if plan.raises and holds_yield(function):
        raise NotRewritable("it is a generator")
    most = leave_by_raises(function) if plan.raises else 0
    lower_exits(function, lambda each: (each.lineno, each.col_offset) in plan.extended)
    if most:
        give_raised(function, most)
    elif apart:
        hand_back_results(function)
    note_live(function)
    for names, kind in ((plan.lists, "list"), (plan.dicts, "dict")):
        if names:
            mark_made(function.body, names, kind)
    add_hooks(function, outside, plan.growing, frozenset(apart))


# ------------------------------------------------------------------------------------------ lambdas


def is_lambda(code: CodeType) -> bool:
    return code.co_name == "<lambda>"


def _find_label(code: CodeType) -> str:
    """The name of a function; of a `lambda`, of which many may stand in a line, with its place."""
    if not is_lambda(code):
        return code.co_name
    kept = [str(each) for each in code.co_consts if type(each) is _PartLabel]
    return kept[0] if kept else f"<lambda> {min(_list_places(code), default=None)}"


class _PartLabel(str):
    """A constant of a rewritten `lambda`, whose parts may begin elsewhere: what it was called."""

    __slots__ = ()


def _list_places(code: CodeType) -> Iterator[tuple[int, int, int, int]]:
    """Where the parts of the code stand: lines and columns of their beginning and their end."""
    for first, last, begin, end in code.co_positions():
        if first and last and begin is not None and end and (first, begin) < (last, end):
            yield first, begin, last, end


def rewrite_lambda(
    tree: ast.Module,
    path: _Path,
    plain: dict[_Path, CodeType],
    plan: Plan,
    shadows: Shadows,
) -> CodeType:
    """The code of a `lambda`, rewritten as a function that returns its value. It is compiled alone,
    with variables around it by the names that it knows."""
    code = plain[path]
    found = _find_lambda(tree, code)
    node = copy.deepcopy(found)
    returned = locate(ast.Return(node.body), node.body)
    function = ast.FunctionDef("<lambda>", node.args, [returned], [], None)
    function.type_params = []  # type: ignore[attr-defined]
    locate(function, node)
    rewrite_function(function, plan, shadows.find(found))
    names: list[ast.stmt] = [assign(name, ast.Constant(None)) for name in code.co_freevars]
    around: ast.stmt = ast.parse("def around(): pass").body[0]
    around.body = [*names, function]  # type: ignore[attr-defined]
    classes = [at for at in path[:-1] if not plain[path[: path.index(at) + 1]].co_flags & 2]
    if classes:  # by its name Python writes `self.__x`
        inside = ast.parse(f"class {classes[-1][0]}: pass").body[0]
        inside.body = [around]  # type: ignore[attr-defined]
        around = inside
    alone = ast.Module([around], [])
    fill_places(alone)
    codes = _walk_codes(compile_tree(code.co_filename, alone))
    (new,) = [each for at, each in codes if len(at) == 2 + bool(classes) and is_lambda(each)]
    if new.co_freevars != code.co_freevars:
        raise NotRewritable("its source is not the one that runs")
    return new.replace(
        co_qualname=code.co_qualname,
        co_firstlineno=code.co_firstlineno,
        co_consts=(*new.co_consts, _PartLabel(_find_label(code))),
    )


def _find_lambda(tree: ast.Module, code: CodeType) -> ast.Lambda:
    """The innermost one in which all parts of the code stand."""
    places = [*_list_places(code)]
    found: list[ast.Lambda] = []
    for node in walk(tree):
        if isinstance(node, ast.Lambda) and places:
            body: Any = node.body
            begin, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
            if all(begin <= each[:2] and each[2:] <= end for each in places):
                found.append(node)
    if not found:
        raise NotRewritable("it is a lambda, of which Python does not tell where it stands")
    return found[-1]  # an outer one is walked before those in it


def _first_line(statement: Any) -> int:
    """Where it begins, with what decorates it."""
    decorators = getattr(statement, "decorator_list", ())
    lines: list[int] = [statement.lineno, *[each.lineno for each in decorators]]
    return min(lines)


def _walk_codes(code: CodeType, path: _Path = ()) -> Iterator[tuple[_Path, CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            its = (*path, (_find_label(each), each.co_firstlineno))
            yield its, each
            yield from _walk_codes(each, its)


def put_hooks(
    code: CodeType, hooks: Any, lambdas: Mapping[tuple[str, int], CodeType] = _NONE
) -> CodeType:
    """The code with the hooks in the place of what stands for them, and with these lambdas."""

    def put(value: Any) -> Any:
        if isinstance(value, CodeType):
            at = _find_label(value), value.co_firstlineno
            return lambdas[at] if at in lambdas else put_hooks(value, hooks, lambdas)
        return hooks if isinstance(value, str) and value == HOOKS else value

    return code.replace(co_consts=tuple(map(put, map(partial(_rename, code), code.co_consts))))


def _rename(around: CodeType, value: Any) -> Any:
    """A block that was moved into a function of its own shows as the function that it was in, and a
    generator as Python names it."""
    if isinstance(value, CodeType) and value.co_name.startswith(MOVED):
        return value.replace(co_name=around.co_name, co_qualname=around.co_qualname)
    if isinstance(value, CodeType) and value.co_name.startswith(GENERATOR):
        return value.replace(co_name="<genexpr>")
    return value
