"""`python -m tests.dialects.make_rows`: makes `lostwax/dialects/edge.yaml`, the dtypes that core
operators take, by trying every combination of dtypes on torch's own kernels; those with half
precision on the kernels of ExecuTorch's runtime, too. With names of operators (`cumsum.default`)
only their rows are made again.

Calls to try are those that the samples of torch's `op_db` come down to: each is run under a mode
that notes which core operators it calls, and with what. What `op_db` does not reach stands in
`MORE`.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from lostwax.dialects.dtype_rows import DTYPES, FILE, DtypeRows, parse_rows, write_rows
from lostwax.dialects.edge import COPIES
from tests.dialects.kernels import Trial, judge

aten = torch.ops.aten
TRIED = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
TRIED += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
REDUCED = frozenset((torch.float16, torch.bfloat16))
NAMES = {dtype: name for name, dtype in DTYPES.items()}
Combination = tuple[torch.dtype, ...]


def core_operators() -> list[OpOverload]:
    """Core operators that have tensors among their arguments, or return one; of views the copies,
    too."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and hasattr(aten, packet):
            op = getattr(getattr(aten, packet), overload or "default")
            if torch.Tag.core in op.tags:
                found |= {op, COPIES.get(op, op)}
    return sorted(filter(has_tensors, found), key=str)


def has_tensors(op: OpOverload) -> bool:
    schema = op._schema
    return any("Tensor" in str(a.type) for a in (*schema.arguments, *schema.returns))


class Harvest(TorchDispatchMode):
    """Notes one small call of each operator that is wanted; views as the copies of them."""

    def __init__(self, wanted: Iterable[OpOverload]) -> None:
        super().__init__()
        self.wanted = set(wanted)
        self.calls: dict[OpOverload, list[Any]] = {op: [] for op in self.wanted}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for target in {func, COPIES.get(func, func)} & self.wanted:
            if len(self.calls[target]) < 6:
                self.calls[target].append(tree_map(copy_leaf, (args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def copy_leaf(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def harvest(
    wanted: list[OpOverload], names: Container[str] | None = None
) -> dict[OpOverload, list[Any]]:
    """Calls of these operators, from all of `op_db` or from some entries of it."""
    from torch.testing._internal.common_methods_invocations import op_db

    mode = Harvest(wanted)
    for info in op_db:
        if names is not None and info.name not in names:
            continue
        for dtype in (torch.float32, torch.int64, torch.bool):
            if dtype not in info.dtypes or info.name.startswith(("linalg", "special")):
                continue
            torch.manual_seed(0)  # whatever was drawn before
            try:
                samples = list(itertools.islice(info.sample_inputs("cpu", dtype), 4))
            except Exception:
                continue
            for sample in samples:
                for gradient in (False, True) if dtype is torch.float32 else (False,):
                    try:
                        with mode, torch.set_grad_enabled(gradient):
                            info.op(sample.input, *sample.args, **sample.kwargs)
                    except Exception:
                        continue
    for op, calls in MORE.items():
        mode.calls[op] = calls
    return mode.calls


def ones(*size: int) -> torch.Tensor:
    return torch.ones(size)


IMAGE = ones(1, 2, 4, 4)
INDEX = torch.zeros(2, dtype=torch.int64)


def call(*args: Any, **kwargs: Any) -> list[Any]:
    return [(args, kwargs)]


MORE: dict[OpOverload, list[Any]] = {
    aten._adaptive_avg_pool2d_backward.default: call(ones(1, 2, 2, 2), IMAGE),
    aten._embedding_bag.default: call(ones(4, 3), INDEX, torch.zeros(1, dtype=torch.int64)),
    aten._fft_c2r.default: call(ones(3).to(torch.complex64), [0], 2, 4),
    aten._local_scalar_dense.default: call(ones(1)),
    aten._native_batch_norm_legit.default: call(
        IMAGE, ones(2), ones(2), ones(2), ones(2), True, 0.1, 1e-5
    ),
    aten._native_batch_norm_legit.no_stats: call(IMAGE, ones(2), ones(2), True, 0.1, 1e-5),
    aten._native_batch_norm_legit_no_training.default: call(
        IMAGE, ones(2), ones(2), ones(2), ones(2), 0.1, 1e-5
    ),
    aten.adaptive_avg_pool1d.default: call(ones(1, 2, 4), [2]),
    aten.atan2.out: call(ones(2), ones(2), out=ones(2)),
    aten.avg_pool1d.default: call(ones(1, 2, 4), [2]),
    aten.avg_pool2d_backward.default: call(
        ones(1, 2, 2, 2), IMAGE, [2, 2], [2, 2], [0, 0], False, True, None
    ),
    aten.bitwise_and.Scalar: call(ones(2), 1),
    aten.bitwise_or.Scalar: call(ones(2), 1),
    aten.bitwise_xor.Scalar: call(ones(2), 1),
    aten.col2im.default: call(ones(1, 8, 4), [4, 4], [2, 2], [1, 1], [0, 0], [2, 2]),
    aten.convolution_backward.default: call(
        *(ones(1, 2, 4, 4), IMAGE, ones(2, 2, 1, 1), [2], [1, 1], [0, 0], [1, 1], False, [0, 0]),
        *(1, [True, True, True]),
    ),
    aten.copy.default: call(ones(2), ones(2)),
    aten.div.Scalar_mode: call(ones(2), 2, rounding_mode="floor"),
    aten.embedding_dense_backward.default: call(ones(2, 3), INDEX, 4, -1, False),
    aten.fmod.Scalar: call(ones(2), 2),
    aten.gt.Scalar: call(ones(2), 2),
    aten.index.Tensor: call(ones(2), [INDEX]),  # which may be a mask, too
    aten.native_dropout.default: call(ones(2), 0.5, True),
    aten.native_group_norm_backward.default: call(
        IMAGE, IMAGE, ones(1, 1), ones(1, 1), ones(2), 1, 2, 16, 1, [True, True, True]
    ),
    aten.native_layer_norm_backward.default: call(
        ones(2, 3), ones(2, 3), [3], ones(2, 1), ones(2, 1), ones(3), ones(3), [True, True, True]
    ),
    aten.pow.Scalar: call(2, ones(2)),
    aten.randperm.default: call(3),
    aten.reflection_pad2d.default: call(IMAGE, [1, 1, 1, 1]),
    aten.reflection_pad3d.default: call(IMAGE.unsqueeze(2).repeat(1, 1, 3, 1, 1), [1] * 6),
    aten.replication_pad3d.default: call(IMAGE.unsqueeze(2).repeat(1, 1, 3, 1, 1), [1] * 6),
    aten.resize_.default: call(ones(2), [4]),
    aten.scatter.value: call(ones(2), 0, INDEX, 1),
    aten.sym_is_contiguous.default: call(ones(2)),
    aten.sym_numel.default: call(ones(2)),
    aten.sym_size.int: call(ones(2), 0),
    aten.sym_storage_offset.default: call(ones(2)),
    aten.sym_stride.int: call(ones(2), 0),
    aten.upsample_bilinear2d.vec: call(IMAGE, [8, 8], False, None),
    aten.upsample_nearest2d.vec: call(IMAGE, [8, 8], None),
    aten.var.dim: call(ones(2, 3), [1]),
}


# --------------------------------------------------------------------------------------- trying


def slots(op: OpOverload, args: Any, kwargs: Any) -> list[tuple[str, torch.Tensor | list[Any]]]:
    """The tensors of a call by the names of their arguments; a list has one dtype."""
    found = []
    for name, value in given_by_name(op, args, kwargs).items():
        if isinstance(value, torch.Tensor):
            found.append((name, value))
        elif isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            found.append((name, list(value)))
    return found


def given_by_name(op: OpOverload, args: Any, kwargs: Any) -> dict[str, Any]:
    names = [a.name for a in op._schema.arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The same in another dtype; never the same tensor, which the operator may write to."""
    if isinstance(value, list):
        return [v if v is None else v.to(dtype, copy=True) for v in value]
    return value.to(dtype, copy=True)


class Verdicts(NamedTuple):
    """The combinations of dtypes that torch's kernel takes, each with the dtypes that it returns;
    and of those with half precision what the runtime's kernel takes, and what it does not."""

    found: set[Combination]
    taken: set[Combination]
    refused: set[Combination]

    def __or__(self, other: Verdicts) -> Verdicts:  # type: ignore[override]
        return Verdicts(*(a | b for a, b in zip(self, other, strict=True)))

    @property
    def apart(self) -> set[Combination]:
        halves = {each for each in self.found if REDUCED.intersection(each)}
        return (halves - self.taken) | self.refused


def try_call(op: OpOverload, call: Any) -> Verdicts:
    """The verdicts of one call. If the runtime's kernel does not take it as it is (a tensor without
    dimensions), it refuses no dtypes."""
    given = given_by_name(op, *call)
    tensors = slots(op, *call)
    choices = list(choose_others(op, given))
    found, halves, trials, plain = set(), [], [], []
    with suppress(Exception):
        plain.append(make_trial(op, given))
    for dtypes, others in itertools.product(combinations([v for _, v in tensors]), choices):
        trial = given | others
        for (name, value), each in zip(tensors, dtypes, strict=True):
            trial[name] = cast(value, each)
        try:
            made = make_trial(op, trial)
        except Exception:
            continue
        combination = dtypes + tuple(dtype_of(r) for r in made[1])
        if not all(d in NAMES for d in combination):
            continue
        found.add(combination)
        if REDUCED.intersection(combination):
            halves.append(combination)
            trials.append(made)
        elif not plain:
            plain.append(made)
    is_usable = any(judge(op, list(map(flatten, plain))))
    verdicts = list(zip(halves, judge(op, list(map(flatten, trials))), strict=True))
    taken = {combination for combination, is_taken in verdicts if is_taken}
    refused = {combination for combination, is_taken in verdicts if not is_taken}
    return Verdicts(found, taken, refused if is_usable else set())


def make_trial(op: OpOverload, given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The arguments as they are before the call, and what torch returns."""
    kept = tree_map(copy_leaf, given)
    return kept, returned_tensors(op, op(**tree_map(copy_leaf, given)))


def flatten(trial: tuple[dict[str, Any], list[Any]]) -> Trial:
    given, results = trial
    return given, [t for r in results for t in (r if is_list(r) else [r])]


def is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def returned_tensors(op: OpOverload, result: Any) -> list[Any]:
    """What a call returned, but for numbers; a list is one."""
    several = result if len(op._schema.returns) > 1 else [result]
    pairs = zip(several, op._schema.returns, strict=True)
    return [value for value, kind in pairs if "Tensor" in str(kind.type)]


def choose_others(op: OpOverload, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What decides dtypes beside tensors: a dtype, and numbers of each kind."""
    names, values = [], []
    for argument in op._schema.arguments:
        if argument.name == "dtype":
            names.append("dtype")
            values.append([None, *TRIED])
        elif str(argument.type) == "number" and argument.name in given:
            names.append(argument.name)
            values.append([given[argument.name], True, 2, 1.5])
    for chosen in itertools.product(*values):
        yield dict(zip(names, chosen, strict=True))


def combinations(values: list[Any]) -> Iterator[Combination]:
    """All combinations of dtypes for these tensors; of five and more those with at most two
    different ones, as their number grows beyond all measure."""
    if len(values) <= 4:
        yield from itertools.product(*map(choose_dtypes, values))
    else:
        for pair in itertools.combinations(TRIED, 2):
            yield from itertools.product(pair, repeat=len(values))


def choose_dtypes(value: Any) -> list[torch.dtype]:
    return COMPLEX if dtype_of(value).is_complex else TRIED


def dtype_of(value: Any) -> Any:
    return next(v.dtype for v in value if v is not None) if is_list(value) else value.dtype


def return_names(op: OpOverload) -> list[str]:
    returns = enumerate(op._schema.returns)
    return [r.name or f"__ret_{i}" for i, r in returns if "Tensor" in str(r.type)]


# --------------------------------------------------------------------------------------- merging

Row = tuple[frozenset[torch.dtype], ...]


Parts = tuple[frozenset[torch.dtype], int]
"""A set of dtypes, and which of those places it is that have this set and another dtype."""


def make_rows(
    op: OpOverload, names: list[str], found: set[Combination], apart: set[Combination]
) -> DtypeRows:
    """Rows that allow exactly these combinations, some of them apart. Equal places have one
    alias."""
    rows, reduced = list_rows(names, found - apart), list_rows(names, apart)
    found_parts = {key for row in (*rows, *reduced) for key in row.values()}
    parts = sorted(found_parts, key=lambda key: (listing(key[0]), key[1]))
    aliases = {key: f"T{i}" for i, key in enumerate(parts)}
    schema = op._schema
    return DtypeRows(
        f"{schema.name}.{schema.overload_name}".removesuffix("."),
        {alias: part for (part, _), alias in aliases.items()},
        tuple({name: aliases[key] for name, key in row.items()} for row in rows),
        tuple({name: aliases[key] for name, key in row.items()} for row in reduced),
    )


def list_rows(names: list[str], found: set[Combination]) -> list[dict[str, Parts]]:
    """Those in which the same places are equal are merged with each other."""
    patterns: dict[tuple[int, ...], set[Combination]] = {}
    for each in found:
        pattern = tuple(each.index(d) for d in each)
        patterns.setdefault(pattern, set()).add(tuple(each[p] for p in sorted(set(pattern))))
    rows: list[dict[str, Parts]] = []
    for pattern, kept in patterns.items():
        places = sorted(set(pattern))
        for row in merge(kept):
            sets = dict(zip(places, row, strict=True))
            keys = {p: (sets[p], sum(sets[q] == sets[p] for q in places if q < p)) for p in places}
            rows.append({name: keys[p] for name, p in zip(names, pattern, strict=True)})
    return sorted(rows, key=lambda row: [(listing(part), n) for part, n in row.values()])


def listing(dtypes: frozenset[torch.dtype]) -> list[str]:
    return sorted(NAMES[d] for d in dtypes)


def merge(found: set[Combination]) -> list[Row]:
    """Rows that cover exactly these combinations: two that differ in one place are joined, until
    none do."""
    rows = {tuple(frozenset((d,)) for d in each) for each in found}
    is_changed = True
    while is_changed:
        is_changed = False
        for place in range(len(next(iter(rows)))):
            groups: dict[Row, set[torch.dtype]] = {}
            for row in rows:
                groups.setdefault((*row[:place], *row[place + 1 :]), set()).update(row[place])
            new = {(*rest[:place], frozenset(d), *rest[place:]) for rest, d in groups.items()}
            is_changed |= len(new) < len(rows)
            rows = new
    return list(rows)


def make_entry(op: OpOverload, calls: list[Any]) -> DtypeRows | None:
    """The rows of an operator by these calls: those with the most tensors count. None if torch
    takes none of them."""
    best = Verdicts(set(), set(), set())
    names: list[str] = []
    for call in calls:
        given = [name for name, _ in slots(op, *call)]
        with torch.backends.mkldnn.flags(enabled=False):  # which checks less, by processor
            told = try_call(op, call)
        if given == names:
            best = best | told
        elif (len(given), len(told.found)) > (len(names), len(best.found)):
            best, names = told, given
    if not best.found:
        return None
    return make_rows(op, names + return_names(op), best.found, best.apart)


def main(only: list[str]) -> None:
    wanted = [op for op in core_operators() if not only or str(op).removeprefix("aten.") in only]
    calls = harvest(wanted)
    entries = list(parse_rows(FILE.read_text())) if only else []
    missing = []
    for op in wanted:
        entry = make_entry(op, calls[op])
        if entry is None:
            missing.append(str(op))
            continue
        entries = [each for each in entries if each.operator != entry.operator] + [entry]
        print(op, len(entry.rows), len(entry.reduced), file=sys.stderr, flush=True)
    entries.sort(key=lambda entry: entry.operator)
    FILE.write_text(HEAD + write_rows(entries))
    print(f"{len(entries)} operators; without a call: {missing}")


HEAD = """# The dtypes that core operators take together, and what they return for them.
# Made by `python -m tests.dialects.make_rows`, which tries them on torch's kernels, and those with
# half precision on the runtime's, too: what these do not take stands apart, as reduced_constraint.
"""

if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(sys.argv[1:])
