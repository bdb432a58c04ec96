"""Takes the decisions out of expressions: `a if c else b`, `and`, `or`, `a < b < c`, `any`, `max`
and comprehensions become statements, in the order in which Python computes their parts.

A decision that is not asked for (`b` in `a and b`) stands under an `if`, as those that the user
has written. The function does what it did before. Must not know what a condition depends on.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, cast

from lostwax.capture.flow.rewriting.comprehensions import (
    QUESTIONS,
    ComprehensionLowering,
    can_be_loop,
    holds_wait,
    join_yields,
)
from lostwax.capture.flow.rewriting.exits import (
    HOOKS,
    AskingWhile,
    assign,
    hook,
    is_hook,
    load,
    locate,
    locate_all,
    map_blocks,
)
from lostwax.capture.flow.rewriting.matches import lower_matches
from lostwax.capture.flow.rewriting.names import GENERATOR, INDEX, ITEMS, PART, TRUTH
from lostwax.capture.flow.rewriting.picks import (
    find_gap,
    find_index,
    holds_pick,
    is_get,
    put_index,
    write_for_each,
)
from lostwax.capture.flow.rewriting.scopes import (
    COMPREHENSIONS,
    SCOPES,
    UNKNOWN,
    Meanings,
    find_stored,
)
from lostwax.capture.python.trees import children, walk

Block = list[ast.stmt]
Reads = tuple[tuple[str, ...], ...]
_EXTREMES = (max, min)
_COMPARISONS = {
    ast.Eq: "equal", ast.NotEq: "differ", ast.In: "is_in", ast.NotIn: "is_not_in",
    ast.Is: "is_same", ast.IsNot: "is_other",
}  # fmt: skip
_ON_DIGITS = (ast.LShift, ast.RShift, ast.Pow, ast.BitAnd, ast.BitOr, ast.BitXor)
_AS_THEY_ARE = (*SCOPES, ast.AsyncFor, ast.AsyncWith)


def take_apart(function: ast.FunctionDef, meanings: Meanings) -> list[ast.FunctionDef]:
    """Rewrite the body of a function, in which names mean this. Returns functions within it that
    have to be rewritten, too."""
    taking = ExpressionLowering(function, meanings)
    function.body = lower_matches(function.body, taking.name)
    for node in walk(function):
        taking.items.prepare(node)
    body = taking.go_through(join_yields(function.body, lambda: taking.name(PART)))
    replacing = _Replacing(meanings)
    function.body = [replacing.visit(each) for each in write_for_each(body)]
    return taking.items.made


class _Operand(NamedTuple):
    """One of `a and b …`."""

    block: Block
    """What computes it."""
    reads: Reads | None
    """What that reads, if it does no more."""
    at: ast.AST


class ExpressionLowering:
    def __init__(self, function: ast.FunctionDef, meanings: Meanings) -> None:
        self._meanings = meanings
        self._numbers = count(1)
        self.items = ComprehensionLowering(self, meanings)
        # Other functions may set these while an expression is computed, or a part of it may.
        moving = {
            name
            for node in walk(function)
            if isinstance(node, (ast.Global, ast.Nonlocal))
            for name in node.names
        }
        inside = [n.target.id for n in walk(function) if isinstance(n, ast.NamedExpr)]
        arguments = [n.arg for n in walk(function.args) if isinstance(n, ast.arg)]
        self._still = {*find_stored(function.body), *arguments} - moving - {*inside}

    # --------------------------------------------------------------------------------- statements

    def go_through(self, block: Sequence[ast.stmt]) -> Block:
        return [new for each in block for new in self._go_through_one(each)]

    def _go_through_one(self, each: Any) -> Block:
        if isinstance(each, _AS_THEY_ARE):
            return [each]  # type: ignore[list-item]
        map_blocks(each, self.go_through)
        before: Block = []
        method = getattr(self, f"_in_{type(each).__name__}", None)
        if method is not None:
            each = method(each, before)
        found = [*before, each]
        for new in before:
            locate(new, each)
        return found

    def _in_Expr(self, each: Any, before: Block) -> ast.stmt:
        each.value = self.take(each.value, before)
        return each  # type: ignore[no-any-return]

    def _in_Return(self, each: Any, before: Block) -> ast.stmt:
        each.value = each.value and self.take(each.value, before)
        return each  # type: ignore[no-any-return]

    _in_AnnAssign = _in_Return

    def _in_Assign(self, each: Any, before: Block) -> ast.stmt:
        if any(map(_is_put, each.targets)):
            return self._put_elements(each, before)
        each.value = self.take(each.value, before)
        if any(map(self.decides, each.targets)):
            each.value = self.keep(each.value, before)
            each.targets = [self.take_parts(target, before) for target in each.targets]
        return each  # type: ignore[no-any-return]

    def _put_elements(self, each: Any, before: Block) -> ast.stmt:
        """`xs[i], y = value`, where data decide the index: one after the other."""
        value = self.keep(self.take(each.value, before), before)
        for target in each.targets:
            parts: list[Any] = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
            names = [value]
            if parts:
                names = [load(self.name(PART)) for _ in parts]
                taken = ast.Tuple([ast.Name(name.id, ast.Store()) for name in names], ast.Store())
                before.append(ast.Assign([taken], value))
            for part, name in zip(parts or [target], names, strict=True):
                before.append(self._put(part, name, before))
        locate_all(before, each)
        return locate(ast.Pass(), each)  # type: ignore[no-any-return]

    def _put(self, target: Any, value: ast.expr, before: Block) -> ast.stmt:
        if not hasattr(target, "is_put"):
            part = self.take_parts(target, before) if self.decides(target) else target
            return ast.Assign([part], value)
        holder = self.keep(self.take(target.value, before), before)
        index = self.keep(self.take(target.slice, before), before)
        return ast.Expr(hook("add_item", holder, index, value))

    def _augment_element(self, each: Any, before: Block) -> ast.stmt:
        """`xs[i] += value`."""
        holder = self.keep(self.take(each.target.value, before), before)
        index = self.keep(self.take(each.target.slice, before), before)
        old = self.name(PART)
        before.append(assign(old, hook("get_item", holder, index)))
        value = self.take(each.value, before)
        before.append(ast.AugAssign(ast.Name(old, ast.Store()), each.op, value))
        locate_all(before, each)
        return locate(ast.Expr(hook("put_item", holder, index, load(old))), each)  # type: ignore[no-any-return]

    def _in_AugAssign(self, each: Any, before: Block) -> ast.stmt:
        if hasattr(each.target, "is_put"):
            return self._augment_element(each, before)
        if not (self.decides(each.value) or self.decides(each.target)):
            return each  # type: ignore[no-any-return]
        target: Any = each.target
        for name in ("value", "slice"):  # of an attribute or an element
            if hasattr(target, name):
                part = self.take(getattr(target, name), before)
                setattr(target, name, self.keep(part, before))
        old = self.name(PART)
        before.append(assign(old, _with_context(target, ast.Load())))
        value = self.take(each.value, before)
        before.append(ast.AugAssign(ast.Name(old, ast.Store()), each.op, value))
        return locate(ast.Assign([target], load(old)), each)  # type: ignore[no-any-return]

    def _in_If(self, each: Any, before: Block) -> ast.stmt:
        test = each.test
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
            each.body, each.orelse = each.orelse or [locate(ast.Pass(), each)], each.body
        each.test = self.ask(test, before)
        return each  # type: ignore[no-any-return]

    def _in_While(self, each: Any, before: Block) -> ast.stmt:
        asking: Block = []
        sets = any(isinstance(node, ast.NamedExpr) for node in walk(each.test))
        test = self.ask(each.test, asking)
        for new in asking:
            locate(new, each)
        if sets and not each.orelse:  # what is set there is handed on like what the body sets
            leave = locate(ast.If(test, [ast.Pass()], [ast.Break()]), each)
            each.test, each.body = ast.Constant(True), [*asking, leave, *each.body]
            return each  # type: ignore[no-any-return]
        if asking or test is not each.test:
            new = AskingWhile(asking, test, each.body, each.orelse)  # type: ignore[call-arg,arg-type]
            return locate(new, each)  # type: ignore[no-any-return]
        return each  # type: ignore[no-any-return]

    def _in_For(self, each: Any, before: Block) -> ast.stmt:
        values = each.iter
        if isinstance(values, ast.GeneratorExp) and can_be_loop(values, 1) and self.decides(values):
            return self.items.take_loop(each, before)  # type: ignore[no-any-return]
        each.iter = self._settle(self.take(each.iter, before), before)
        return each  # type: ignore[no-any-return]

    def _in_With(self, each: Any, before: Block) -> ast.stmt:
        first, *rest = each.items
        if rest and any(self.decides(item.context_expr) for item in rest):
            each.items = [first]
            each.body = self._go_through_one(locate(ast.With(rest, each.body), each))
        first.context_expr = self._settle(self.take(first.context_expr, before), before)
        return each  # type: ignore[no-any-return]

    def _in_Match(self, each: Any, before: Block) -> ast.stmt:
        each.subject = self._settle(self.take(each.subject, before), before)
        return each  # type: ignore[no-any-return]

    def _in_Raise(self, each: Any, before: Block) -> ast.stmt:
        if each.exc is not None and self.decides(each.exc):
            each.exc = self.keep(self.take(each.exc, before), before)
        each.cause = each.cause and self.take(each.cause, before)
        return each  # type: ignore[no-any-return]

    def _in_Assert(self, each: Any, before: Block) -> ast.stmt:
        if not __debug__:  # Python does not run it
            return each  # type: ignore[no-any-return]
        made = ast.Call(load("AssertionError"), [each.msg] if each.msg else [], [])
        fails = locate(ast.If(each.test, [ast.Pass()], [ast.Raise(made, None)]), each)
        for inner in (*fails.body, *fails.orelse):
            locate(inner, each)
        *more, choice = self._go_through_one(fails)
        before += more
        return choice

    # -------------------------------------------------------------------------------- expressions

    def decides(self, each: ast.AST | None) -> bool:
        """Is there a decision in an expression?"""
        if each is None or isinstance(each, SCOPES):
            return False
        if hasattr(each, "pick") or hasattr(each, "is_named"):
            return True
        if isinstance(each, COMPREHENSIONS):
            return self.items.decides(each)
        if isinstance(each, (ast.BoolOp, ast.IfExp)):
            return not holds_wait(each)
        if isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not):
            return True
        if isinstance(each, ast.Compare) and len(each.ops) > 1:
            return True
        if isinstance(each, ast.Call) and self._is_decision(each):
            return True
        return any(map(self.decides, children(each)))

    def _find_builtin(self, call: ast.Call) -> Any:
        """The function of Python's that is called, if it decides something."""
        function = self._meanings.find_one_of(call.func, (*QUESTIONS, *_EXTREMES))
        args = call.args
        if not args or call.keywords or any(isinstance(a, ast.Starred) for a in args):
            return None
        return function if (len(args) > 1) == (function in _EXTREMES) else None

    def _is_decision(self, call: ast.Call) -> bool:
        return self.items.find_use(call) is not None or self._find_builtin(call) is not None

    def take(self, each: Any, out: Block) -> Any:
        """The expression without decisions; they go before it."""
        if not self.decides(each):
            return each
        if hasattr(each, "pick"):
            return self._take_picked(each, out)
        if hasattr(each, "is_named"):
            del each.is_named
            return self.keep(self.take(each, out), out)
        if isinstance(each, ast.Call) and self._is_decision(each):
            return self._take_call(each, out)
        if isinstance(each, COMPREHENSIONS):
            return self.items.take(each, out)
        method = getattr(self, f"_take_{type(each).__name__}", None)
        return self.take_parts(each, out) if method is None else method(each, out)

    def ask(self, each: Any, out: Block) -> Any:
        """The same for an expression of which only the truth is asked."""
        if isinstance(each, ast.BoolOp) and self.decides(each):
            name = self.name(TRUTH)
            self._take_operands(each, name, out, is_asked=True)
            return load(name)
        if isinstance(each, ast.Compare) and len(each.ops) > 1:
            return self._take_Compare(each, out, is_asked=True)
        if isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not):
            return locate(hook("negate", self.ask(each.operand, out)), each)
        if isinstance(each, ast.Call):
            each.is_asked = True  # type: ignore[attr-defined]
        return self._settle(self.take(each, out), out)

    def take_parts(self, each: Any, out: Block) -> Any:
        """Compute the parts of an expression in their order; the last decision is the last thing
        that is done before the expression itself."""
        places = [*_list_parts(each)]
        deciding = [i for i, (_, _, part) in enumerate(places) if self.decides(part)]
        for i, (holder, key, part) in enumerate(places[: deciding[-1] + 1]):
            new = self.take(part, out)
            _set_part(holder, key, new if i == deciding[-1] else self.keep(new, out))
        return each

    def keep(self, each: Any, out: Block) -> Any:
        """Compute it now."""
        if isinstance(each, ast.Constant) or (isinstance(each, ast.Name) and self._stays(each.id)):
            return each
        if isinstance(each, ast.Starred):
            kept = self.keep(ast.List([each], ast.Load()), out)
            return locate(ast.Starred(kept, ast.Load()), each)
        if isinstance(each, ast.Slice):
            for name in ("lower", "upper", "step"):
                if getattr(each, name) is not None:
                    setattr(each, name, self.keep(getattr(each, name), out))
            return each
        if isinstance(each, ast.FormattedValue):
            each.value = self.keep(each.value, out)
            return each
        name = self.name(PART)
        out.append(locate(assign(name, each), each))
        return locate(load(name), each)

    def _settle(self, each: Any, out: Block) -> Any:
        """Compute it now, if data pick an element in it: only then it is written for each."""
        return self.keep(each, out) if holds_pick(each) else each

    def _take_picked(self, each: Any, out: Block) -> Any:
        """An element that data pick: what picks it is computed before, and is a number then."""
        if is_get(each):
            return self._take_got(each, out)
        is_attribute = isinstance(each, ast.Call)
        holder = self.take(each.args[0] if is_attribute else each.value, out)
        holder = self.keep(holder, out)
        index = self.keep(self.take(find_index(each), out), out)
        of = [holder, ast.Constant(find_gap(each)), ast.Constant(is_attribute)]
        fails: Any = ast.Raise(hook("miss", *of), None)
        fails.is_stand_in = "attribute" if is_attribute else "element"
        out.append(ast.If(hook("is_outside", index, *of), [fails], []))
        name, pick = self.name(INDEX), ast.Constant(cast(Any, tuple(each.pick)))
        out.append(assign(name, hook("find_place", index, *of, pick)))
        put_index(each, holder, hook("spell", index, load(name), *of))
        each.picked_by = name
        return each

    def _take_got(self, each: Any, out: Block) -> Any:
        """`d.get(key, default)`, where data pick the key."""
        holder = self.keep(self.take(each.func.value, out), out)
        args = [self.keep(self.take(part, out), out) for part in each.args]
        name, pick = self.name(INDEX), ast.Constant(cast(Any, tuple(each.pick)))
        out.append(assign(name, hook("find_key", holder, args[0], pick)))
        new: Any = locate(hook("get_at", holder, load(name), *args), each)
        new.pick, new.picked_by = each.pick, name
        return new

    def _stays(self, name: str) -> bool:
        """Can nothing else set this variable while an expression is computed?"""
        return self._meanings.stays(name) or " " in name or name in self._still

    def _take_IfExp(self, each: Any, out: Block) -> Any:
        name = self.name(PART)
        test, sides = each.test, [each.body, each.orelse]
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, sides = test.operand, sides[::-1]
        test = self.ask(test, out)
        blocks = [self._compute(name, side) for side in sides]
        out.append(locate(ast.If(test, *blocks), each))
        return locate(load(name), each)

    def _compute(self, name: str, value: Any) -> Block:
        block: Block = []
        made = self.take(value, block)
        return [locate(new, value) for new in (*block, assign(name, made))]

    def _take_BoolOp(self, each: Any, out: Block) -> Any:
        chosen = _choose_by_first(each)
        if chosen is not None:
            return self.take(chosen, out)
        name = self.name(PART)
        self._take_operands(each, name, out, is_asked=False)
        return locate(load(name), each)

    def _take_operands(self, each: Any, name: str, out: Block, is_asked: bool) -> None:
        """Let a variable have the value of `a and b …`, or its truth."""
        operands: list[_Operand] = []
        for value in each.values:
            block: Block = []
            reads = _list_reads(value) if is_asked else None
            made = self.ask(value, block) if is_asked else self.take(value, block)
            made = hook("truth", made) if is_asked else made
            inner: Block = [locate(new, value) for new in (*block, assign(name, made))]
            operands.append(_Operand(inner, None if block else reads, value))
        self._put_operands(operands, name, isinstance(each.op, ast.And), out)

    def _put_operands(
        self, operands: Sequence[_Operand], name: str, is_and: bool, out: Block
    ) -> None:
        """Put what computes the operands, each after the first where those before it do not
        decide."""
        reads: Reads | None = ()
        rest: Block = []
        for each in reversed(operands[1:]):
            reads = None if reads is None or each.reads is None else (*each.reads, *reads)
            rest = [self._go_on(name, [*each.block, *rest], is_and, reads, each.at)]
        out += [*operands[0].block, *rest]

    def _go_on(
        self, name: str, block: Block, is_and: bool, reads: Reads | None, at: ast.AST
    ) -> ast.If:
        """Do more, if what is known so far does not decide."""
        other: Block = [locate(ast.Pass(), at)]
        if name.startswith(PART):  # there it may be certain what it is
            other = [locate(assign(name, hook("find_known", load(name))), at)]
        sides: Any = (block, other) if is_and else (other, block)
        choice: Any = locate(ast.If(load(name), *sides), at)
        choice.joins = None if reads is None else (name, is_and, reads)
        return choice  # type: ignore[no-any-return]

    def _take_UnaryOp(self, each: Any, out: Block) -> Any:
        if not isinstance(each.op, ast.Not):
            return self.take_parts(each, out)
        negated = hook("negate", self.ask(each.operand, out))
        return locate(hook("value", negated), each)

    def _take_Compare(self, each: Any, out: Block, is_asked: bool = False) -> Any:
        if len(each.ops) == 1:
            return self.take_parts(each, out)
        name = self.name(TRUTH if is_asked else PART)
        left = self.keep(self.take(each.left, out), out)
        operands: list[_Operand] = []
        for i, (op, value) in enumerate(zip(each.ops, each.comparators, strict=True)):
            block: Block = []
            reads = _list_reads(ast.Compare(left, [op], [value])) if is_asked else None
            right = self.take(value, block)
            if i + 1 < len(each.ops):
                right = self.keep(right, block)
            compared: ast.expr = locate(ast.Compare(left, [op], [right]), each)
            compared = hook("truth", compared) if is_asked else compared
            inner: Block = [locate(new, each) for new in (*block, assign(name, compared))]
            operands.append(_Operand(inner, None if block else reads, value))
            left = right
        self._put_operands(operands, name, True, out)
        return locate(load(name), each)

    def _take_call(self, call: Any, out: Block) -> Any:
        if self.items.find_use(call) is not None:
            return self.items.take_use(call, out)
        function = self._find_builtin(call)
        if function in QUESTIONS:
            return self.items.take_question(call, out)
        return self._take_extreme(call, function is max, out)

    def _take_extreme(self, call: Any, is_max: bool, out: Block) -> Any:
        """Python's `max(a, b)`: b, if b > a, else a."""
        first, *rest = (self.keep(self.take(each, out), out) for each in call.args)
        found = self.name(PART)
        out.append(assign(found, first))
        for each in rest:
            out.append(assign(found, hook("take_known", call.func, load(found), each)))
            asked = hook("is_better", ast.Constant(is_max), each, load(found))
            out.append(ast.If(asked, [assign(found, each)], [ast.Pass()]))
        locate_all(out, call)
        return locate(load(found), call)

    def name(self, kind: str) -> str:
        return f"{kind}{next(self._numbers)}"


def _choose_by_first(each: ast.BoolOp) -> ast.expr | None:
    """`(a or b) if c else b` for `(c and a) or b`, and its like: what `c` is does not matter then,
    only whether it is true."""
    for i, inner in enumerate(each.values[:-1]):
        if isinstance(inner, ast.BoolOp) and type(inner.op) is not type(each.op):
            rest = _join_operands(each, each.values[i + 1 :])
            if sum(1 for _ in walk(rest)) > _MOST_COPIED:
                return None
            test = _join_operands(inner, inner.values[:-1])
            more = _join_operands(each, [inner.values[-1], copy.deepcopy(rest)])
            sides = (more, rest) if isinstance(inner.op, ast.And) else (rest, more)
            chosen = locate(ast.IfExp(test, *sides), inner)
            return _join_operands(each, [*each.values[:i], chosen])
    return None


_MOST_COPIED = 100
"""So many nodes an operand has at most that is written twice."""


def _join_operands(each: ast.BoolOp, values: list[ast.expr]) -> ast.expr:
    return values[0] if len(values) == 1 else locate(ast.BoolOp(each.op, values), each)


def _is_put(target: ast.expr) -> bool:
    """Is an element set of which data decide which it is?"""
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    has_rest = any(isinstance(each, (ast.Starred, ast.Tuple, ast.List)) for each in parts)
    return not has_rest and any(hasattr(each, "is_put") for each in parts)


def _is_no_number(each: ast.expr) -> bool:
    return isinstance(each, ast.Constant) and not isinstance(each.value, (int, float))


class _Replacing(ast.NodeTransformer):
    """Lets hooks compare, where Python would ask for the truths of elements, and say what is
    called."""

    def __init__(self, meanings: Meanings) -> None:
        self._meanings = meanings

    def visit(self, node: Any) -> Any:
        return node if isinstance(node, SCOPES) else super().visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """`[a] + values`, where the values may be a list whose length is open."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Add) and isinstance(node.left, ast.List):
            return locate(hook("join", node.left, node.right), node)  # type: ignore[no-any-return]
        if isinstance(node.op, ast.Mult) and ast.List in (type(node.left), type(node.right)):
            return locate(hook("repeat_list", node.left, node.right), node)  # type: ignore[no-any-return]
        if isinstance(node.op, _ON_DIGITS) and not isinstance(node.right, ast.Constant):
            name = ast.Constant(type(node.op).__name__)
            return locate(hook("operate", name, node.left, node.right), node)  # type: ignore[no-any-return]
        return node

    def visit_List(self, node: ast.List) -> ast.expr:
        """`[a, *values, b]`, where the values may be a list whose length is open: one after the
        other, as Python does it."""
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or not any(
            isinstance(each, ast.Starred) for each in node.elts
        ):
            return node
        made: ast.expr = ast.List([], ast.Load())
        for each in node.elts:
            values = each.value if isinstance(each, ast.Starred) else ast.List([each], ast.Load())
            made = hook("spread", made, values)
        return locate(made, node)  # type: ignore[no-any-return]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """`layers[:n]`, where data may decide the number."""
        self.generic_visit(node)
        part = node.slice
        if not isinstance(node.ctx, ast.Load) or not isinstance(part, ast.Slice):
            return node
        bounds = [each or ast.Constant(None) for each in (part.lower, part.upper, part.step)]
        if all(isinstance(getattr(each, "operand", each), ast.Constant) for each in bounds):
            return node
        return locate(hook("cut", node.value, *bounds), node)  # type: ignore[no-any-return]

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) > 1 or (name := _COMPARISONS.get(type(node.ops[0]))) is None:
            return node
        sides = (node.left, *node.comparators)
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and any(map(_is_no_number, sides)):
            return node
        return locate(hook(name, node.left, node.comparators[0]), node)  # type: ignore[no-any-return]

    def visit_With(self, node: ast.With) -> ast.With:
        """What manages it is read off the code (`handlers.py`)."""
        for item in node.items:
            item.context_expr.stays = True  # type: ignore[attr-defined]
        self.generic_visit(node)
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        if node.exc is not None:
            node.exc.stays = True  # type: ignore[attr-defined]
        self.generic_visit(node)
        return node

    def visit_Call(self, node: Any) -> ast.expr:
        self.generic_visit(node)
        if hasattr(node, "stays") or _is_known(node.func):
            return node  # type: ignore[no-any-return]
        first: Any = getattr(node.args[0], "func", None) if node.args else None
        if _find_name(node) in _JOINING and is_hook(first, "callee"):
            node.args[0].func = locate(hook("copier", first.args[0]), first)
        joins = self._meanings.find_one_of(node.func, (UNKNOWN, enumerate, zip, reversed))
        asked = [ast.Constant(True)] if hasattr(node, "is_asked") else []
        node.func = locate(hook("callee", node.func, *asked), node.func)
        node.may_join = joins is not None
        return node  # type: ignore[no-any-return]


def _is_known(function: Any) -> bool:
    """Is it a hook or a part of what we have written, or `super`, which has to be called so?"""
    if isinstance(function, ast.Attribute):
        function = function.value
        is_ours = isinstance(function, ast.Constant) and function.value == HOOKS
        return is_ours or getattr(function, "id", "").startswith(ITEMS)
    name = getattr(function, "id", "")
    return name == "super" or name.startswith(GENERATOR)


_JOINING = ("stack", "cat", "concat", "concatenate")


def _list_parts(each: Any) -> Any:
    """The parts of an expression in the order in which they are computed, each with where it is."""
    if isinstance(each, ast.Dict):
        for i in range(len(each.values)):
            if each.keys[i] is not None:
                yield each.keys, i, each.keys[i]
            yield each.values, i, each.values[i]
        return
    for name, value in ast.iter_fields(each):
        if isinstance(value, list):
            for i, part in enumerate(value):
                if isinstance(part, ast.keyword):
                    yield part, "value", part.value
                elif isinstance(part, ast.expr):
                    yield value, i, part
        elif isinstance(value, ast.expr):
            if isinstance(each, ast.NamedExpr) and name == "target":
                continue
            yield each, name, value


def _find_name(call: ast.Call) -> str | None:
    """The name of the function or method that is called."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _set_part(holder: Any, key: Any, value: Any) -> None:
    if isinstance(key, int):
        holder[key] = value
    else:
        setattr(holder, key, value)


def _list_reads(each: ast.AST) -> Reads | None:
    """What is read by what only compares variables, attributes and constants; None, if it does
    more."""
    if isinstance(each, ast.Compare) and not isinstance(each.ops[0], (ast.In, ast.NotIn)):
        parts = [_list_reads(part) for part in (each.left, *each.comparators)]
        known = [part for part in parts if part is not None]
        return tuple(read for part in known for read in part) if len(known) == len(parts) else None
    if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
        return ((each.value.id, each.attr),)
    if isinstance(each, ast.Name):
        return ((each.id,),)
    return () if isinstance(each, ast.Constant) else None


def _with_context(target: Any, context: Any) -> Any:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, context)
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, context)
    return ast.Subscript(target.value, target.slice, context)
