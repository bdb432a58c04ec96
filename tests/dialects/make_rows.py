"""`python -m tests.dialects.make_rows`: makes `lostwax/dialects/edge.yaml`, the dtypes that core
operators take, by trying every combination of dtypes on torch's own kernels.

Calls to try are those that the samples of torch's `op_db` come down to: each is run under a mode
that notes which core operators it calls, and with what. What `op_db` does not reach stands in
`MORE`.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from lostwax.dialects.dtype_rows import DTYPES, FILE, DtypeRows, write_rows
from lostwax.dialects.edge import COPIES

aten = torch.ops.aten
TRIED = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
TRIED += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NAMES = {dtype: name for name, dtype in DTYPES.items()}
Combination = tuple[torch.dtype, ...]


def core_operators() -> list[OpOverload]:
    """Core operators that have tensors among their arguments, or return one; views as copies."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and hasattr(aten, packet):
            op = getattr(getattr(aten, packet), overload or "default")
            if torch.Tag.core in op.tags:
                found.add(COPIES.get(op, op))
    left = [op for op in found if not is_left_out(op)]
    return sorted(left, key=str)


def is_left_out(op: OpOverload) -> bool:
    """No tensors are in its schema, or it writes to them."""
    schema = op._schema
    kinds = [str(a.type) for a in (*schema.arguments, *schema.returns)]
    is_sized = op._schema.name.startswith("aten::sym_") or op is aten._local_scalar_dense.default
    return schema.is_mutable or is_sized or not any("Tensor" in kind for kind in kinds)


class Harvest(TorchDispatchMode):
    """Notes one small call of each operator that is wanted; views as the copies of them."""

    def __init__(self, wanted: Iterable[OpOverload]) -> None:
        super().__init__()
        self.wanted = set(wanted)
        self.calls: dict[OpOverload, list[Any]] = {op: [] for op in self.wanted}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = COPIES.get(func, func)
        if target in self.wanted and len(self.calls[target]) < 6:
            self.calls[target].append(tree_map(copy_leaf, (args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def copy_leaf(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def harvest(wanted: list[OpOverload]) -> dict[OpOverload, list[Any]]:
    from torch.testing._internal.common_methods_invocations import op_db

    mode = Harvest(wanted)
    for info in op_db:
        for dtype in (torch.float32, torch.int64, torch.bool):
            if dtype not in info.dtypes or info.name.startswith(("linalg", "special")):
                continue
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
    aten._fft_c2r.default: call(ones(3), [0], 2, 4),
    aten._native_batch_norm_legit.no_stats: call(IMAGE, ones(2), ones(2), True, 0.1, 1e-5),
    aten._native_batch_norm_legit_no_training.default: call(
        IMAGE, ones(2), ones(2), ones(2), ones(2), 0.1, 1e-5
    ),
    aten.adaptive_avg_pool1d.default: call(ones(1, 2, 4), [2]),
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
    aten.scatter.value: call(ones(2), 0, INDEX, 1),
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
    if isinstance(value, list):
        return [v if v is None else v.to(dtype) for v in value]
    return value.to(dtype)


def try_call(op: OpOverload, call: Any) -> set[Combination]:
    """The combinations of dtypes that the kernel takes, each with the dtypes that it returns."""
    given = given_by_name(op, *call)
    tensors = slots(op, *call)
    choices = list(choose_others(op, given))
    found = set()
    for dtypes, others in itertools.product(combinations(len(tensors)), choices):
        trial = given | others
        for (name, value), each in zip(tensors, dtypes, strict=True):
            trial[name] = cast(value, each)
        try:
            result = op(**trial)
        except Exception:
            continue
        results = result if isinstance(result, tuple) else (result,)
        found.add(dtypes + tuple(dtype_of(r) for r in results))
    return {each for each in found if all(d in NAMES for d in each)}


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


def combinations(count: int) -> Iterator[Combination]:
    """All combinations of so many dtypes; of five and more those with at most two different ones,
    as their number grows beyond all measure."""
    for dtypes in itertools.product(TRIED, repeat=min(count, 4)):
        if count <= 4:
            yield dtypes
    if count > 4:
        for pair in itertools.combinations(TRIED, 2):
            yield from itertools.product(pair, repeat=count)


def dtype_of(result: Any) -> Any:
    return result[0].dtype if isinstance(result, (list, tuple)) else result.dtype


def return_names(op: OpOverload) -> list[str]:
    return [r.name or f"__ret_{i}" for i, r in enumerate(op._schema.returns)]


# --------------------------------------------------------------------------------------- merging

Row = tuple[frozenset[torch.dtype], ...]


def make_rows(op: OpOverload, names: list[str], found: set[Combination]) -> DtypeRows:
    """Rows that allow exactly these combinations. Those in which the same places are equal are
    merged with each other, and equal places get one alias."""
    patterns: dict[tuple[int, ...], set[Combination]] = {}
    for each in found:
        pattern = tuple(each.index(d) for d in each)
        patterns.setdefault(pattern, set()).add(tuple(each[p] for p in sorted(set(pattern))))
    rows: list[dict[str, tuple[frozenset[torch.dtype], int]]] = []
    for pattern, kept in patterns.items():
        places = sorted(set(pattern))
        for row in merge(kept):
            sets = dict(zip(places, row, strict=True))
            keys = {p: (sets[p], sum(sets[q] == sets[p] for q in places if q < p)) for p in places}
            rows.append({name: keys[p] for name, p in zip(names, pattern, strict=True)})
    rows.sort(key=lambda row: [listing(part) for part, _ in row.values()])
    found_parts = {key for row in rows for key in row.values()}
    parts = sorted(found_parts, key=lambda key: (bool(REDUCED & key[0]), listing(key[0]), key[1]))
    aliases = {key: f"T{i}" for i, key in enumerate(parts)}
    named = [{name: aliases[key] for name, key in row.items()} for row in rows]
    halves = [any(REDUCED & part for part, _ in row.values()) for row in rows]
    schema = op._schema
    return DtypeRows(
        f"{schema.name}.{schema.overload_name}".removesuffix("."),
        {alias: part for (part, _), alias in aliases.items()},
        tuple(row for row, half in zip(named, halves, strict=True) if not half),
        tuple(row for row, half in zip(named, halves, strict=True) if half),
    )


REDUCED = frozenset((torch.float16, torch.bfloat16))


def listing(dtypes: frozenset[torch.dtype]) -> list[str]:
    return sorted(NAMES[d] for d in dtypes)


def merge(found: set[Combination]) -> list[Row]:
    """Rows that cover exactly these combinations: two that differ in one place are joined, until
    none do. Those with half precision are merged with each other only."""
    rows = {tuple(frozenset((d,)) for d in each) for each in found}
    is_changed = True
    while is_changed:
        is_changed = False
        for place in range(len(next(iter(rows)))):
            groups: dict[object, set[torch.dtype]] = {}
            for row in rows:
                is_half = bool(REDUCED & row[place])
                rest = (*row[:place], *row[place + 1 :])
                groups.setdefault((rest, is_half), set()).update(row[place])
            new = {
                (*rest[:place], frozenset(d), *rest[place:])  # type: ignore[index]
                for (rest, _), d in groups.items()  # type: ignore[misc]
            }
            is_changed |= len(new) < len(rows)
            rows = new
    return list(rows)


def main() -> None:
    wanted = core_operators()
    calls = harvest(wanted)
    entries, missing = [], []
    for op in wanted:
        best: set[Combination] = set()
        names: list[str] = []
        for call in calls[op]:
            given = [name for name, _ in slots(op, *call)]
            found = try_call(op, call)
            if given == names:
                best |= found
            elif (len(given), len(found)) > (len(names), len(best)):
                best, names = found, given
        if not best:
            missing.append(str(op))
            continue
        entries.append(make_rows(op, names + return_names(op), best))
        print(op, len(best), len(entries[-1].rows), len(entries[-1].reduced), file=sys.stderr)
    FILE.write_text(HEAD + write_rows(entries))
    print(f"{len(entries)} operators; without a call: {missing}")


HEAD = """# The dtypes that core operators take together, and what they return for them.
# Made by `python -m tests.dialects.make_rows`, which tries them on torch's kernels.
"""

if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
