"""Goes on after a refusal: the guilty expression is replaced, in the code of the functions that
have it, by what it gives in eager. All is put back at the end.

The text of the file stays as long as it was, line by line, so that places stay what they are. What
is captured so is no program for anybody: only what it runs into is of use. Other threads that run
these functions meanwhile compute what stands there.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from threading import get_ident
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.bytecode import nested_codes, read_steps
from lostwax.capture.python.replaced_text import (
    ReplacedText,
    compile_tree,
    name_calls,
    replaced,
)
from lostwax.collector import list_functions
from lostwax.errors import CaptureError
from lostwax.location import Span
from lostwax.undo.undo import Undo

_STORES = frozenset(("STORE_NAME", "STORE_GLOBAL"))


class ContinueAfterRefusal:
    """Expressions that were replaced so far, and their values."""

    def __init__(self, call: Callable[[], Any], undo: Undo) -> None:
        self.call = call
        """Calls the module in eager, on copies."""
        self.values: list[list[Any]] = []
        self._thread = get_ident()
        self._originals: list[CodeType] = []
        """What stood where each number stands now."""
        self._turns: dict[int, int] = defaultdict(int)
        self._files: dict[str, list[str]] = {}
        self._caches: dict[str, Any] = {}
        self._codes: list[tuple[FunctionType, CodeType]] = []
        undo.add(self._put_back)

    def _put_back(self) -> None:
        for function, code in reversed(self._codes):
            function.__code__ = code
        for file, entry in self._caches.items():
            linecache.cache.pop(file, None)
            if entry is not None:
                linecache.cache[file] = entry
        replaced.clear()

    def keep(self, number: int, value: Any) -> Any:
        """In eager: note what the expression gives."""
        if get_ident() == self._thread:
            self.values[number].append(pytree.tree_map(_copy_value, value))
        return value

    def give(self, number: int) -> Any:
        """In a capture: give what was noted; of a tensor, one with the sizes that vary."""
        frame = sys._getframe(1)
        if get_ident() != self._thread:
            return _compute_there(self._originals[number], frame)
        kept = self.values[number]
        if not kept:
            return None  # a statement
        value = kept[min(self._turns[number], len(kept) - 1)]
        self._turns[number] += 1
        sizes = _find_symbols(frame.f_locals)
        return pytree.tree_map(lambda leaf: _resize(leaf, sizes), value)

    def start_again(self) -> None:
        self._turns.clear()

    def replace(self, span: Span) -> str:
        """Replace an expression; if that cannot be done, say why."""
        lines = self._files.get(span.file) or linecache.getlines(span.file)
        found = _find_text(lines, span)
        if found is None:
            return "it is no expression of a file of Python"
        number = len(self.values)
        self.values.append([])
        start, end = found
        text = "".join(lines)
        expression = text[start:end]
        name = self._name_in(span.file, text)
        is_expression = _is_expression(expression)
        watched = text
        if is_expression:
            watched = f"{text[:start]}{name}({number}, ({expression})){text[end:]}"
        given = _fill(f"{name}({number})", expression)
        replaced = f"{text[:start]}{given}{text[end:]}"
        try:
            self._originals.append(_compile_original(expression, span.file, is_expression))
            self._put(span.file, watched)
            self.start_again()
            self.call()
            if is_expression and not self.values[number]:
                return "eager does not come there"
            self._put(span.file, replaced)
        except Exception as error:
            return f"in eager it raises {type(error).__name__}: {error}"
        return ""

    def _name_in(self, file: str, text: str) -> str:
        """By what name the text of a file calls this: one that is not in it."""
        if file not in replaced:
            name = next(name for i in count() if (name := f"_lw{i or ''}") not in text)
            replaced[file] = ReplacedText(name, self)
        return replaced[file].name

    def _put(self, file: str, text: str) -> None:
        """Let the functions of a file have the code of another text."""
        compiled = compile_tree(file, name_calls(file, ast.parse(text)))
        new = {(c.co_qualname, c.co_firstlineno): c for c in nested_codes(compiled)}
        for function in list_functions(file):
            old = function.__code__
            if (old.co_qualname, old.co_firstlineno) in new:
                code = new[old.co_qualname, old.co_firstlineno]
                if code.co_freevars == old.co_freevars:
                    self._codes.append((function, old))
                    function.__code__ = code
        self._caches.setdefault(file, linecache.cache.get(file))
        lines = text.splitlines(keepends=True)
        linecache.cache[file] = (len(text), None, lines, file)
        self._files[file] = lines


def _compile_original(text: str, file: str, is_expression: bool) -> CodeType:
    text = f"({text})" if is_expression else text
    return compile(text, file, "eval" if is_expression else "exec", dont_inherit=True)


def _compute_there(original: CodeType, frame: FrameType) -> Any:
    """What stood somewhere, computed with the variables of a frame."""
    names = {**frame.f_globals, **frame.f_locals}
    assigned = _STORES.intersection(each.opname for each in read_steps(original))
    if assigned:
        raise CaptureError.here(
            "a function that assigns a variable is called while another thread reports on it",
            why="the report has replaced that line, and cannot assign for this thread",
            instead="call it when lostwax.report(...) has returned",
        )
    return eval(original, names)


def _copy_value(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _find_text(lines: list[str], span: Span) -> tuple[int, int] | None:
    """From where to where a span goes in a text; a whole statement if it is no expression."""
    if not 1 <= span.line <= span.last <= len(lines):
        return None
    before = len("".join(lines[: span.line - 1]))
    start = before + len(lines[span.line - 1].encode()[: span.start].decode(errors="ignore"))
    above = len("".join(lines[: span.last - 1]))
    end = above + len(lines[span.last - 1].encode()[: span.end].decode(errors="ignore"))
    text = "".join(lines)
    if _is_expression(text[start:end]):
        return start, end
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    around = [
        n
        for n in ast.walk(tree)
        if isinstance(n, (ast.Expr, ast.AugAssign, ast.Assert, ast.Delete))
        and n.lineno <= span.line <= (n.end_lineno or 0)
    ]
    if not around:
        return None
    node = around[-1]
    whole = Span(
        span.file, node.lineno, "", node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
    )
    start = len("".join(lines[: whole.line - 1])) + whole.start
    end = len("".join(lines[: whole.last - 1])) + whole.end
    return start, end


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text.strip() or "1 1", mode="eval")
    except SyntaxError:
        return False
    return True


def _fill(new: str, old: str) -> str:
    """A text that is as long as another, with its ends of lines inside of parentheses."""
    if "\n" in old:
        return f"({new}{chr(10) * old.count(chr(10))})"
    return new.ljust(len(old))


def _find_symbols(names: dict[str, Any]) -> dict[int, torch.SymInt]:
    """The sizes that vary, of the tensors that a function has, by what they are in the example."""
    found: dict[int, torch.SymInt] = {}
    for leaf in pytree.tree_leaves(
        [v for v in names.values() if not isinstance(v, torch.nn.Module)]
    ):
        for size in leaf.shape if isinstance(leaf, torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and isinstance(size.node.hint, int):
                found.setdefault(size.node.hint, size)
    return found


def _resize(value: Any, symbols: dict[int, torch.SymInt]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    sizes = [symbols.get(size, size) for size in value.shape]
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        return value
    return torch.zeros(sizes, dtype=value.dtype, device=value.device)
