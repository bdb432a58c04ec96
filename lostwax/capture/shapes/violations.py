"""Reports the declared dimensions that a trace breaks, in one error with code to paste; and applies
that code to a spec.

Must not decide what is a violation: guards.py and sym/guards.py do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor

from lostwax.capture.shapes.dims import (
    DerivedDim,
    Dim,
    IntVariable,
    Static,
    adopt_dim,
    roots_by_name,
)
from lostwax.capture.shapes.marks import is_of_torch_spec
from lostwax.capture.shapes.reader import WILDCARD
from lostwax.capture.shapes.spec import Spec
from lostwax.errors import ConstraintViolationError, DynamicShapesError
from lostwax.sym import BrokenDim, ShapeEnv

HEADING = "Suggested fixes:"
_PLACES = 3  # of a Dim that are described


@dataclass(frozen=True)
class Fix:
    """A change to the declarations. `dim` is the name of a Dim, or if not `named`, the path of a
    size or number (`x.shape[0]`, `n`). It is empty for a constraint.

    `kind` says what `value` is: "constant", an int; "range", a Dim or hint; "derived", another
    Dim's name, a factor and an offset; "constraint", the text.
    """

    dim: str
    kind: str
    value: Any
    named: bool = True

    @property
    def code(self) -> str:
        """The code to paste after the declarations, or into the spec if it has no name."""
        if self.kind == "constraint":
            return f"constraints=[{_quote(self.value)}]"
        code = f"{self.dim} = {self._entry}" if self.named else self.placed
        return code + self._comment

    @property
    def placed(self) -> str:
        """The entry in the spec: `x: {0: batch}`."""
        entry = "None" if self.kind == "constant" else self._entry
        size = _SIZE.fullmatch(self.dim)
        return f"{size[1]}: {{{size[2]}: {entry}}}" if size else f"{self.dim}: {entry}"

    @property
    def _entry(self) -> str:
        if self.kind != "derived":
            return repr(self.value).replace("'", '"')
        root, scale, offset = self.value
        return str(scale * Dim(root) + offset)

    @property
    def _comment(self) -> str:
        if self.kind == "constant":
            return "  # always" if self.named else f"  # {self.value}"
        return "  # one Dim for both" if self.kind == "derived" and self.value[1:] == (1, 0) else ""


_SIZE = re.compile(r"(.+)\.shape\[(\d+)\]")
_ORDER = ("range", "constant", "derived", "constraint")  # as code, each may use those before


def violation_error(
    violations: Sequence[BrokenDim], spec: Spec, env: ShapeEnv
) -> ConstraintViolationError:
    """One error for all violations: by dimension, each with its guards and one fix."""
    keeps_both = env.before_hint is not None  # where sizes decide
    by_dim: dict[str, list[BrokenDim]] = {}
    for violation in violations:
        for dim in dict.fromkeys([violation.dim, *_constants(violation)]):
            by_dim.setdefault(dim, []).append(violation)
    fixes = _find_fixes(violations, spec)
    head = "a declared dimension cannot" if len(by_dim) == 1 else f"{len(by_dim)} declared dims"
    head += " vary as declared" if len(by_dim) == 1 else " cannot vary as declared"
    described = "\n".join(_dim_text(dim, found, spec, keeps_both) for dim, found in by_dim.items())
    lines = "\n".join(f"    {fix.code}" for fix in fixes)
    message = f"{head}{_line_to_paste(fixes)}\n{described}\n{HEADING}\n{lines}"
    constraints = _unchanged_constraints(spec, _redeclared_names(fixes))
    constraints += [fix.value for fix in fixes if fix.kind == "constraint"]
    return ConstraintViolationError(
        message,
        tuple(fixes),
        _refine_spec(spec, fixes),
        tuple(dict.fromkeys(constraints)),
        tuple(violations),
    )


def _line_to_paste(fixes: Sequence[Fix]) -> str:
    """All fixes as one line of code, if they are all declarations of Dims, or all additions to the
    spec."""
    if all(not fix.named and fix.kind != "constant" for fix in fixes):
        return f"; in dynamic_shapes, write {_join_placed(fixes)}"
    if any(not fix.named or fix.kind == "constraint" for fix in fixes):
        return ""
    return "; declare " + "; ".join(fix.code.partition("  #")[0] for fix in fixes)


def _join_placed(fixes: Sequence[Fix]) -> str:
    """Entries in the spec, with those of one input in one pair of braces."""
    by_path: dict[str, list[str]] = {}
    for fix in fixes:
        path, _, entry = fix.placed.partition(": ")
        by_path.setdefault(path, []).append(entry)
    joined = {path: ", ".join(entries) for path, entries in by_path.items()}
    return ", ".join(f"{path}: {text.replace('}, {', ', ')}" for path, text in joined.items())


def _constants(violation: BrokenDim) -> list[str]:
    """The dimensions that the violation fixes to a constant."""
    return [fix.dim for fix in _read_fix(violation) if fix.kind == "constant"]


def _dim_text(dim: str, violations: list[BrokenDim], spec: Spec, keeps_both: bool) -> str:
    lines = [f"  {_declaration_text(dim, spec)}"]
    for violation in violations:
        guard = violation.guard
        wrong = ""
        if violation.dim == dim and violation.counterexample is not None:
            wrong = f", which is not so at {dim} = {violation.counterexample}"
            if len(guard.cond.symbols()) > 1:
                wrong += " with the example's other sizes"
        lines.append(f"    the program is right only where {guard.predicate}{wrong}")
        lines.append(f"      because {guard.reason}")
        lines.append(f"      at {guard.where}")
        if guard.kind == "specialize":
            lines += [f"      {way}" for word, way in _WAYS if word.search(guard.where.text)][:1]
        elif _find_forgotten(dim, violation, spec):
            (fixed,) = (fix for fix in _read_fix(violation) if fix.dim == dim)
            lines.append(f"      or, if it never varies: {fixed.code.partition('  #')[0]}")
        if guard.kind in ("branch", "specialize") and not keeps_both:
            lines.append('      or export(..., control_flow="sizes"), which lets sizes decide')
    return "\n".join(lines)


def _find_forgotten(dim: str, violation: BrokenDim, spec: Spec) -> list[Fix]:
    """Sizes of other inputs that are not declared, and are as the violation wants a size to be that
    is: what is to be added to `dynamic_shapes`. None if the program asked for a plain integer."""
    if violation.guard.kind == "specialize" or spec.call is None:
        return []
    varying = _varying_sizes(dim, violation, spec)
    found = []
    for path, entries, leaf in zip(spec.paths, spec.leaves, spec.call.leaves, strict=True):
        for i, size in enumerate(leaf.shape if isinstance(leaf, Tensor) else ()):
            is_fixed = entries is None or isinstance(entries[i], Static)  # type: ignore[index]
            if is_fixed and size in varying and size > 1:
                found.append(Fix(f"{path}.shape[{i}]", *varying[size], named=False))
    return found if len(found) <= _PLACES else []


def _varying_sizes(dim: str, violation: BrokenDim, spec: Spec) -> dict[int, tuple[str, Any]]:
    """What the sizes of this dimension are where the violation fixes it: kind and value of the fix
    that lets another size vary with them."""
    fixes = _read_fix(violation)
    wanted = next((fix.value for fix in fixes if (fix.dim, fix.kind) == (dim, "constant")), None)
    if wanted is None:
        return {}
    if dim not in spec.named_dims:
        return {wanted: ("range", Dim.DYNAMIC)}
    varying: dict[int, tuple[str, Any]] = {}
    for _, entry in spec.named_dims[dim].places:
        terms = (entry.scale, entry.offset) if isinstance(entry, DerivedDim) else (1, 0)
        varying[terms[0] * wanted + terms[1]] = ("derived", (dim, *terms))
    return varying


_WAYS = [
    (re.compile(pattern), way)
    for pattern, way in (
        (
            r"\blist\(range\(",
            "list(range(n)) is a list of plain integers; write torch.arange(n), and the size may "
            "vary",
        ),
        (
            r"\brange\(|\bfor\b.*\bin\b|\bunbind\(",
            "a loop over a size is unrolled, one turn each; compute on the whole tensor instead, "
            "and the size may vary",
        ),
        (r"\blen\(", "len(x) is a plain integer; write x.shape[0], and the size may vary"),
        (
            r"\.shape\.numel\(|\.size\(\)\.numel\(",
            "x.shape.numel() is a plain integer; write x.numel(), and the size may vary",
        ),
        (
            r"\bint\(|\bfloat\(",
            "int() and float() give plain numbers; write torch.sym_int(n), torch.sym_float(n), "
            "n // 2 or math.floor(n * 0.3), and the size may vary",
        ),
        (
            r"\]\s*\*|\*\s*\[",
            "a list repeated by a size has one length; use expand() or repeat(), and the size may "
            "vary",
        ),
    )
]
"""Patterns of a line that makes a size constant, and what to write instead."""


def _declaration_text(dim: str, spec: Spec) -> str:
    """A Dim and its places: `batch, declared Dim(...): x.shape[0] is batch, ...`."""
    root = spec.named_dims.get(dim)
    if root is None:
        return f"{dim}, declared Dim.DYNAMIC"
    places = [
        f"{place.path} is {entry} ({place.value} in the example)"
        for place, entry in root.places[:_PLACES]
    ]
    if len(root.places) > _PLACES:
        places.append(f"and {len(root.places) - _PLACES} more")
    return f"{dim}, declared {root.dim!r}: {', '.join(places)}"


# ------------------------------------------------------------------------------------------ fixes


def _find_fixes(violations: Sequence[BrokenDim], spec: Spec) -> list[Fix]:
    numbers = set(spec.paths) - spec.named_dims.keys()
    found: dict[Fix, BrokenDim] = {}
    for violation in violations:
        for fix in _read_fix(violation):
            fix = _as_number_fix(fix) if fix.dim in numbers else fix
            forgotten = _find_forgotten(fix.dim, violation, spec)
            for each in forgotten if fix.kind == "constant" and forgotten else [fix]:
                found.setdefault(each, violation)
    found = _strongest_fixes(_tie_roots(found, spec))
    redeclared = _redeclared_names(found)
    described = [_state_by_path(fix, v, redeclared) for fix, v in found.items()]
    described += [Fix("", "constraint", text) for text in _rewrite_constraints(spec, redeclared)]
    return _sort_fixes(described)


def _tie_roots(found: dict[Fix, BrokenDim], spec: Spec) -> dict[Fix, BrokenDim]:
    """Of `c = a + 2` and `c = b + 2` only one can be declared; the other one says `b = a`."""
    names, first = [*spec.named_dims], dict[str, Fix]()
    tied: dict[Fix, BrokenDim] = {}
    for fix, violation in found.items():
        kept = first.setdefault(fix.dim, fix) if fix.kind == "derived" else fix
        if kept is not fix and fix.value[0] != kept.value[0]:
            (root, scale, offset), (other, *rest) = sorted(
                (kept.value, fix.value), key=lambda value: _find_place(value[0], names)
            )
            step, remainder = divmod(offset - rest[1], scale)
            if scale == rest[0] and not remainder:
                fix = Fix(other, "derived", (root, 1, step))
        tied.setdefault(fix, violation)
    return tied


def _find_place(name: str, names: Sequence[str]) -> int:
    """How early a Dim stands among these; what is none comes last."""
    return names.index(name) if name in names else len(names)


def _strongest_fixes(found: dict[Fix, BrokenDim]) -> dict[Fix, BrokenDim]:
    """One fix for each dimension: of several, the strongest. A constant is stronger than a Dim
    derived from another, and that is stronger if the other stays as it is."""
    redeclared = _redeclared_names(found)
    best: dict[str, Fix] = {}
    for fix in found:
        rank = _strength(fix, redeclared)
        if fix.dim and (fix.dim not in best or rank > _strength(best[fix.dim], redeclared)):
            best[fix.dim] = fix
    return {fix: v for fix, v in found.items() if not fix.dim or best[fix.dim] is fix}


def _strength(fix: Fix, redeclared: set[str]) -> int:
    if fix.kind == "derived":
        return 1 if fix.value[0] in redeclared else 2
    return 3 if fix.kind == "constant" else 0


def _sort_fixes(fixes: list[Fix]) -> list[Fix]:
    """Each fix after those that its code uses."""
    by_dim = _by_dim(fixes)

    def depth(fix: Fix, seen: frozenset[str] = frozenset()) -> int:
        if fix.kind != "derived" or fix.dim in seen or fix.value[0] not in by_dim:
            return 0
        return 1 + depth(by_dim[fix.value[0]], seen | {fix.dim})

    return sorted(fixes, key=lambda fix: (_ORDER.index(fix.kind), depth(fix)))


def _redeclared_names(fixes: Iterable[Fix]) -> set[str]:
    """The names that stand for no Dim of their own any more."""
    return {fix.dim for fix in fixes if fix.kind in ("constant", "derived")}


def _unchanged_constraints(spec: Spec, redeclared: set[str]) -> list[str]:
    """The user's constraints that do not use these names."""
    return [c.text for c in spec.constraints if not redeclared & set(c.names)]


def _rewrite_constraints(spec: Spec, redeclared: set[str]) -> list[str]:
    """The user's constraints that use these names, with paths of sizes instead."""
    names = "|".join(re.escape(name) for name in redeclared & spec.named_dims.keys())
    return [
        re.sub(rf"(?<![\w.\]'\"])({names})(?!\w)", lambda m: _place_text(m[1], spec), c.text)
        for c in spec.constraints
        if redeclared & set(c.names)
    ]


def _place_text(name: str, spec: Spec) -> str:
    place, entry = spec.named_dims[name].places[0]
    if not isinstance(entry, DerivedDim):
        return place.path
    return f"(({place.path} - {entry.offset})//{entry.scale})".replace("- -", "+ ")


def _as_number_fix(fix: Fix) -> Fix:
    """The fix for an int input without a Dim: its path looks like a name."""
    value = fix.value
    if fix.kind == "range":
        value = Dim.DYNAMIC(min=value.min, max=value.max)
    return Fix(fix.dim, fix.kind, value, named=False)


def _state_by_path(fix: Fix, violation: BrokenDim, redeclared: set[str]) -> Fix:
    """A constraint that names redeclared Dims, with paths of inputs instead."""
    if fix.kind != "constraint" or not redeclared & set(re.findall(r"\w+", fix.value)):
        return fix
    return Fix("", "constraint", violation.guard.predicate)


_LINE = re.compile(
    r"(?P<dim>.+?) = (?:"
    r"(?:Dim|IntVar|Dim\.DYNAMIC)\((?P<range>['\"].+['\"])?(?:(?:, )?min=(?P<min>-?\d+))?"
    r"(?:(?:, )?max=(?P<max>-?\d+))?\)"
    r"|(?P<constant>-?\d+)"
    r"|(?:(?P<scale>\d+)\*)?(?P<root>[A-Za-z_]\w*)(?: (?P<sign>[+-]) (?P<offset>\d+))?)"
)
_IN_SPEC = re.compile(r"(?P<path>.+): (?:\{(?P<dim>\d+): )?(?P<entry>[^{}]+)\}?")


def _read_fix(violation: BrokenDim) -> Iterator[Fix]:
    return (fix for line in violation.fix.splitlines() for fix in _read_line(line))


def _read_line(line: str) -> Iterator[Fix]:
    """The fixes in one line of code."""
    code, _, comment = line.strip().partition("  #")
    if code.startswith("constraints="):
        texts = ast.literal_eval(code.removeprefix("constraints="))
        yield from (Fix("", "constraint", text) for text in texts)
    elif placed := _IN_SPEC.fullmatch(code):
        place = placed["path"] + (f".shape[{placed['dim']}]" if placed["dim"] else "")
        entry = comment.strip() if placed["entry"] == "None" else placed["entry"]
        for fix in _read_line(f"{place} = {entry}"):
            yield _as_number_fix(fix) if fix.named else fix
    elif match := _LINE.fullmatch(code):
        yield _read_match(match)
    elif code:
        raise DynamicShapesError(f"not a suggested fix: {line.strip()!r}")


def _read_match(match: re.Match[str]) -> Fix:
    dim = match["dim"]
    named = dim.isidentifier()
    if match["constant"]:
        return Fix(dim, "constant", int(match["constant"]), named)
    if match["root"] is None:
        low, high = (None if match[word] is None else int(match[word]) for word in ("min", "max"))
        if not named:
            return Fix(dim, "range", Dim.DYNAMIC(min=low or None, max=high), named)
        is_size = (low or 0) >= 0 and (high or 0) >= 0
        value = Dim(dim, min=low, max=high) if is_size else IntVariable(dim, low, high)
        return Fix(dim, "range", value)
    offset = int(match["offset"] or 0) * (-1 if match["sign"] == "-" else 1)
    return Fix(dim, "derived", (match["root"], int(match["scale"] or 1), offset), named)


def _quote(text: str) -> str:
    return f'"{text}"' if '"' not in text else repr(text)


# ---------------------------------------------------------------------------------------- refined


def refine_dynamic_shapes_from_suggested_fixes(
    msg: ConstraintViolationError | str, dynamic_shapes: Any
) -> Any:
    """`dynamic_shapes` with the fixes that the error suggests.

    `msg` is the error, or its text. Relations that no Dim can express are not part of
    `dynamic_shapes`: pass `error.constraints` to `export` as well, in place of those before.
    """
    fixes = _read_fixes(msg)
    if isinstance(dynamic_shapes, str):
        dynamic_shapes = {WILDCARD: {0: Dim(dynamic_shapes)}}
    by_place = any(not fix.named for fix in fixes) or is_of_torch_spec(dynamic_shapes)
    if by_place or hasattr(dynamic_shapes, "dynamic_shapes"):  # a collection, ours or torch's
        if isinstance(msg, str):
            raise DynamicShapesError(
                "these fixes are about sizes by their place in the call, which a text does not "
                "tell\n  instead: pass the error itself, "
                "refine_dynamic_shapes_from_suggested_fixes(error, dynamic_shapes)"
            )
        return msg.dynamic_shapes
    known = roots_by_name(map(_as_dim, pytree.tree_leaves(dynamic_shapes)))
    return pytree.tree_map(lambda entry: _apply_fix(entry, _by_dim(fixes), known), dynamic_shapes)


def _read_fixes(error: ConstraintViolationError | str) -> Sequence[Fix]:
    if isinstance(error, ConstraintViolationError):
        fixes: Sequence[Any] = error.fixes
        return fixes
    _, heading, lines = str(error).partition(HEADING)
    if not heading:
        raise DynamicShapesError(
            f"no fixes are suggested in this text: it has no line {HEADING!r}\n"
            "  instead: pass the ConstraintViolationError that export raised, or its text"
        )
    return [fix for line in lines.strip().splitlines() for fix in _read_line(line)]


def _by_dim(fixes: Sequence[Fix]) -> dict[str, Fix]:
    return {fix.dim: fix for fix in fixes if fix.dim}


def _as_dim(entry: Any) -> Any:
    return Dim(entry) if isinstance(entry, str) else adopt_dim(entry)


def _apply_fix(entry: Any, fixes: dict[str, Fix], known: dict[str, Dim], place: str = "") -> Any:
    """An entry of a spec, changed if there is a fix for its Dim or its place."""
    dim = _as_dim(entry)
    if isinstance(dim, DerivedDim) and dim.root.__name__ in fixes:
        return dim.scale * _apply_fix(dim.root, fixes, known) + dim.offset
    fix = fixes.get(dim.__name__) if isinstance(dim, Dim) else fixes.get(place)
    if fix is None:
        return entry
    if fix.kind != "derived":
        return None if fix.kind == "constant" and not isinstance(dim, Dim) else fix.value
    name, scale, offset = fix.value
    root = known.get(name, Dim(name))
    if name not in known and name not in fixes:
        raise DynamicShapesError(
            f"the fix {fix.code!r} names {name}, which dynamic_shapes does not have\n"
            "  instead: pass the dynamic_shapes that were exported with"
        )
    others = {dim: other for dim, other in fixes.items() if other is not fix}
    return scale * _apply_fix(root, others, known) + offset


def _refine_spec(spec: Spec, fixes: Sequence[Fix]) -> dict[str, Any] | None:
    """The whole spec as a dict by argument, with the fixes applied."""
    if spec.call is None:
        return None
    by_dim, known = _by_dim(fixes), {name: root.dim for name, root in spec.named_dims.items()}
    leaves = []
    for path, entries, leaf in zip(spec.paths, spec.leaves, spec.call.leaves, strict=True):
        if entries is None and any(fix.dim.startswith(f"{path}.shape[") for fix in fixes):
            entries = (Dim.STATIC,) * leaf.ndim
        if not isinstance(entries, tuple):
            leaves.append(_apply_fix(entries, by_dim, known, path))
            continue
        sizes = (
            _apply_fix(entry, by_dim, known, f"{path}.shape[{i}]")
            for i, entry in enumerate(entries)
        )
        leaves.append(tuple(sizes))
    return spec.call.mirror(leaves)
