"""How DTensor shards arguments and results of operators, while a capture runs.

A DTensor is a shard and how it was cut; an operator on it becomes operators on shards and
collectives, which is what the tracer meets. In between DTensor asks for sizes of whole tensors:
here they are those of the capture, which vary. Must not import DTensor's modules before the user
has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from lostwax import torch_version
from lostwax.capture import threads
from lostwax.capture.example_call import PlainCall
from lostwax.capture.patches.swap import CodeSwap, CodeSwaps
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.write import flatten
from lostwax.ir.data import Settings
from lostwax.ops.shapes import hint
from lostwax.sym import Expr
from lostwax.undo.undo import Undo


def describe_call(
    leaves: list[Any], list_paths: Callable[[], Iterable[str]], differentiates: bool
) -> PlainCall:
    """What of a call is cut."""
    if sys.modules.get("torch.distributed.tensor") is None:
        return PlainCall(leaves)
    from lostwax.capture.sharded.boundary import CutCall

    return CutCall(leaves, list_paths, differentiates)


def apply(undo: Undo) -> None:
    """From here on DTensor asks the capture. There is none of its class where its module is not
    imported."""
    propagator = getattr(sys.modules.get(_SHARDING), "ShardingPropagator", None)
    if propagator is None:
        return
    if not _swaps:
        try:
            _swaps.append(CodeSwaps(_list_swaps(propagator)))
        except (ImportError, AttributeError) as error:  # they are torch's own, and may be renamed
            if torch_version.is_tested():
                raise
            raise torch_version.make_import_error(error) from error
    undo.add(_chosen.clear)
    undo.add(_meshes.clear)
    _swaps[0].apply(undo)


def note_sharding(
    settings: Settings, module: GraphModule, call: PlainCall, state: Mapping[str, Any]
) -> Settings:
    """The settings of a program, with the process groups that it counts on (those that its graph
    names, and those of the meshes over which its tensors are cut) and its table of placements."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return settings
    from lostwax.ir.run.conditions.groups import list_groups

    sharding = call.make_table(state)
    return settings._replace(groups=list_groups(module, call.meshes), sharding=sharding)


def _list_swaps(propagator: Any) -> list[CodeSwap]:
    from torch.distributed.tensor._collective_utils import redistribute_cost
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._ops.utils import is_tensor_shardable

    return [
        CodeSwap(propagator.propagate_op_sharding_non_cached, _choose_placements),
        CodeSwap(propagator._propagate_tensor_meta_non_cached, _infer_whole),
        CodeSwap(is_tensor_shardable, _is_shardable),
        CodeSwap(DTensorSpec.__hash__, _hash_here),
        CodeSwap(redistribute_cost, _estimate_at_example),
    ]


_SHARDING = "torch.distributed.tensor._sharding_prop"
_swaps: list[CodeSwaps] = []


def _vary(numbers: Any) -> bool:
    return any(type(each) is torch.SymInt for each in numbers)


def _hash_here(plain: Any, self: Any) -> int:
    """torch's caches know no sizes that vary. They take the meshes of two ranks of one process for
    equal, and would answer for the other rank: so each mesh has entries of its own."""
    meta = self.tensor_meta
    if meta is not None and _vary((*meta.shape, *meta.stride)):
        raise TypeError("a DTensorSpec of sizes that vary has no hash")
    return hash((plain(self), id(self.mesh)))


def _choose_placements(plain: Any, self: Any, op_schema: Any) -> Any:
    """How an operator's arguments and results are sharded. Which ways there are is asked of the
    example's sizes; of the one that is taken the program's sizes must allow it."""
    key = _describe_call(op_schema)
    found = None if key is None else _chosen.get(key)
    if found is None:
        found = op_schema, _choose_anew(plain, self, op_schema)
        if key is not None and (key := _describe_call(op_schema)) is not None:
            _chosen[key] = found  # with what was found out meanwhile
    return found[1]


def _choose_anew(plain: Any, self: Any, op_schema: Any) -> Any:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._ops.utils import is_tensor_shardable

    _choosing.append(op_schema)
    try:
        chosen = plain(self, op_schema)
    finally:
        _choosing.pop()
    taken = chosen.redistribute_schema if chosen.needs_redistribute else None
    specs = [chosen.output_spec, () if taken is None else taken.args_schema]
    for spec in flatten(specs):
        if isinstance(spec, DTensorSpec) and spec.tensor_meta is not None:
            is_tensor_shardable(spec.shape, spec)
    return chosen


_chosen: dict[Any, tuple[Any, Any]] = {}
"""What was chosen in this capture: the call, and how it is sharded."""
_meshes: list[Any] = []
"""The meshes of this capture, told apart by identity: torch takes those of two ranks for equal."""


def _describe_call(op_schema: Any) -> Any:
    """A key for all that a choice depends on; None if there is none."""
    env = threads.running[-1].shape_env
    assert env is not None
    numbers: list[Expr] = []
    try:
        key = (
            op_schema.op,
            *(
                _describe(each, numbers)
                for each in (op_schema.args_schema, op_schema.kwargs_schema)
            ),
        )
        hash(key)
    except TypeError:
        return None
    if not numbers:
        return key
    world = env.facts.world
    return None if world is None else (world, *key)


def _describe(value: Any, numbers: list[Expr]) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple([_describe(each, numbers) for each in value])
    if isinstance(value, dict):
        return tuple([(name, _describe(each, numbers)) for name, each in value.items()])
    if type(value) is torch.SymInt:
        value = unwrap(value)
        numbers += [value] if isinstance(value, Expr) else []
        return value
    mesh = getattr(value, "mesh", None)
    if mesh is None:
        return type(value), value
    index = next((i for i, each in enumerate(_meshes) if each is mesh), len(_meshes))
    if index == len(_meshes):
        _meshes.append(mesh)
    order, meta = value.shard_order, value.tensor_meta
    parts = () if meta is None else (tuple(meta.shape), tuple(meta.stride), meta.dtype)
    return index, value.placements, order, _describe(parts, numbers)


_choosing: list[Any] = []
"""The calls whose placements are being chosen; in the capturing thread alone."""


def _is_shardable(plain: Any, shape: Any, spec: Any, *more: Any, **named: Any) -> Any:
    if _choosing and _vary(shape):
        shape = [_take_example(each) for each in shape]
    return plain(shape, spec, *more, **named)


def _estimate_at_example(plain: Any, current_spec: Any, target_spec: Any) -> Any:
    """What it costs to shard a tensor otherwise, by which one of several equal ways is chosen: the
    sizes of the example decide, and nothing hangs on it but time."""
    return plain(_show_example(current_spec), _show_example(target_spec))


def _show_example(spec: Any) -> Any:
    meta = spec.tensor_meta
    if meta is None or not _vary((*meta.shape, *meta.stride)):
        return spec
    shape, stride = (tuple(map(_take_example, numbers)) for numbers in (meta.shape, meta.stride))
    return spec.shallow_copy_with_tensor_meta(meta._replace(shape=torch.Size(shape), stride=stride))


def _take_example(number: Any) -> int:
    found = hint(unwrap(number))
    return _UNKNOWN if found is None else found


_UNKNOWN = 4096
"""For sizes that depend on data."""


def _infer_whole(plain: Any, self: Any, op_schema: Any) -> Any:
    """On the fakes of the capture, whose sizes vary; the program computes with shards alone."""
    from torch.distributed.tensor._dtensor_spec import TensorMeta

    if op_schema.op is torch.ops.aten.equal.default:  # its result is data
        return plain(self, op_schema)
    tracer = threads.running[-1]

    def call() -> Any:
        return op_schema.op(*op_schema.gen_fake_args(), **op_schema.gen_fake_kwargs())

    def describe(out: Any) -> Any:
        if isinstance(out, (tuple, list)):
            return type(out)([describe(each) for each in out])
        if not isinstance(out, torch.Tensor):
            return None
        return TensorMeta(shape=out.shape, stride=out.stride(), dtype=out.dtype)

    with tracer.pause_recording():
        return describe(tracer.reenter(call, (), {}))
