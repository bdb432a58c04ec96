"""Makes `dynamic_shapes` from entries for single tensors, or from several example calls.

The result is what a user could have written by hand; spec.py reads it. Must not make symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.utils._pytree as pytree

from lostwax.capture.example_call import ExampleCall
from lostwax.capture.shapes.dims import Dim, Dynamic
from lostwax.errors import DynamicShapesError
from lostwax.identity import ByIdentity
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import leaf_text, sketch_call


class IntWrapper:
    """An int with an identity, so that a `ShapesCollection` can have an entry for it."""

    def __init__(self, val: int) -> None:
        self.val = val

    def __repr__(self) -> str:
        return f"IntWrapper({self.val!r})"


class ShapesCollection:
    """Says what varies tensor by tensor: easier than a spec that repeats a deep structure.

        shapes = ShapesCollection()
        shapes[x] = {0: batch}
        shapes[cache[3].keys] = (batch, None, seq, None)
        export(mod, args, dynamic_shapes=shapes)

    For ints, wrap them in the arguments, `IntWrapper(n)`, and ask for
    `shapes.dynamic_shapes(mod, wrapped_args)`.
    """

    def __init__(self) -> None:
        self._shapes = ByIdentity[Any, Any]()

    def __setitem__(self, tensor: Any, shape: Any) -> None:
        _check_key(tensor)
        found = self._shapes.setdefault(tensor, shape)
        if found != shape:
            raise DynamicShapesError(
                f"ShapesCollection: two different shapes for one tensor of size "
                f"{leaf_text(tensor)}: {found!r} and {shape!r}\n"
                "  instead: assign it once; one tensor in two places has one shape"
            )

    def __getitem__(self, tensor: Any) -> Any:
        """What was assigned; if nothing was, a new dict to fill, `shapes[x][0] = batch`."""
        _check_key(tensor)
        return self._shapes.setdefault(tensor, {})

    def __len__(self) -> int:
        return len(self._shapes)

    def dynamic_shapes(
        self, m: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The spec as a dict by argument, with None for what was not assigned."""
        call = ExampleCall(m, args, kwargs)
        lost = [each for each in self._shapes if not any(each is leaf for leaf in call.leaves)]
        if lost:
            kinds = ", ".join(leaf_text(tensor) for tensor in lost)
            raise DynamicShapesError(
                f"ShapesCollection: {len(lost)} of its tensors are not in the arguments: {kinds}\n"
                "  They may have been copied (x.to(...), x.clone()), or stand in a class that is "
                "not registered.\n"
                "  instead: index with the very object that is passed, shapes[args[0]] = ...; "
                "for a class lostwax.register_dataclass(cls)"
            )
        return call.mirror(list(map(self._shapes.get, call.leaves)))


DynamicShapes: TypeAlias = (
    "Mapping[str, Any] | tuple[Any, ...] | list[Any] | ShapesCollection | AdditionalInputs | None"
)
"""What may be said of an example's sizes: by the names of the arguments, or in their order."""


def _check_key(key: Any) -> None:
    if not isinstance(key, torch.Tensor | IntWrapper):
        raise DynamicShapesError(
            f"ShapesCollection is indexed by a tensor or an IntWrapper, not a {type(key).__name__}"
            '\n  instead: shapes[x] = {0: Dim("batch")}, where x is the tensor of the example; by '
            'names, dynamic_shapes={"x": {0: Dim("batch")}} without a collection'
        )


class AdditionalInputs:
    """Finds what varies from several calls: every size, int and float that differs among them.

    inputs = AdditionalInputs()
    inputs.add((torch.randn(3, 10),))
    program = export(mod, (torch.randn(2, 10),), dynamic_shapes=inputs)
    inputs.verify(program)
    """

    def __init__(self) -> None:
        self._examples: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        """Another call, beside the example: what differs between them varies."""
        if not isinstance(args, tuple):
            raise DynamicShapesError(
                f"AdditionalInputs.add: args must be a tuple, not a {type(args).__name__}\n"
                "  instead: for one argument write (x,)"
            )
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise DynamicShapesError(
                f"AdditionalInputs.add: kwargs must be a dict, not a {type(kwargs).__name__}"
            )
        self._examples.append((args, dict(kwargs or {})))

    def dynamic_shapes(
        self, m: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The spec as a dict by argument: `Dim.DYNAMIC` for what differs, None for the rest."""
        call = ExampleCall(m, args, kwargs)
        others = [self._leaves_like(call, i) for i in range(len(self._examples))]
        columns = zip(call.paths(), call.leaves, *others, strict=True)
        return call.mirror([_varying_entry(path, list(values)) for path, *values in columns])

    def _leaves_like(self, call: ExampleCall, i: int) -> list[Any]:
        """The leaves of an added call, which must have the structure of the first."""
        args, kwargs = self._examples[i]
        other = ExampleCall(call.function, args, kwargs)
        if other.arguments.keys() == call.arguments.keys():
            ordered = [other.arguments[name] for name in call.arguments]
            trees = [argument.tree for argument in call.arguments.values()]
            if [argument.tree for argument in ordered] == trees:
                return [
                    leaf
                    for a in ordered
                    for leaf in other.leaves[a.start : a.start + a.tree.num_leaves]
                ]
        first = pytree.tree_unflatten(call.leaves, call.tree)
        raise DynamicShapesError(
            f"AdditionalInputs: call {i} has another structure than the example\n"
            f"  example: {sketch_call(*first)}\n  call {i}: {sketch_call(args, kwargs)}\n"
            "  instead: calls that differ in sizes and numbers only"
        )

    def check(self, program: ExportedProgram) -> None:
        """Check that the program takes every added call, without running it. `export` does this."""
        from lostwax.ir.run.module import call_convention

        convention = call_convention(program, True)
        for i, (args, kwargs) in enumerate(self._examples):
            with self._name_failing_call(i):
                convention.bind(args, kwargs)

    def verify(self, ep: ExportedProgram) -> None:
        """Run the program on every added call; an error names the first that it refuses."""
        module = ep.module()
        for i, call in enumerate(self._examples):
            leaves, tree = pytree.tree_flatten(call)
            args, kwargs = pytree.tree_unflatten([_copy(leaf) for leaf in leaves], tree)
            with self._name_failing_call(i), torch.no_grad():
                module(*args, **kwargs)

    @contextmanager
    def _name_failing_call(self, i: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise DynamicShapesError(
                f"AdditionalInputs: the program does not take call {i}, "
                f"{sketch_call(*self._examples[i])}\n  {type(error).__name__}: {error}"
            ) from error


def _copy(leaf: Any) -> Any:
    """A copy, since the program may write to its inputs."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _varying_entry(path: str, values: list[Any]) -> Any:
    """The entry of the spec for a leaf that has these values in the calls."""
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values)
        raise _difference_error(path, f"is of different types ({kinds})")
    if not isinstance(first, torch.Tensor):
        if all(value == first for value in values):
            return None
        if isinstance(first, int | float) and not isinstance(first, bool):
            return Dim.DYNAMIC
        raise _difference_error(path, f"has different values ({', '.join(map(repr, values))})")
    if any((t.ndim, t.dtype) != (first.ndim, first.dtype) for t in values):
        kinds = ", ".join(leaf_text(value) for value in values)
        raise _difference_error(path, f"differs in dtype or number of dimensions ({kinds})")
    sizes = [{tensor.shape[i] for tensor in values} for i in range(first.ndim)]
    entries: tuple[Dynamic | None, ...] = tuple(Dim.DYNAMIC if len(s) > 1 else None for s in sizes)
    return entries if any(entries) else None


def _difference_error(path: str, what: str) -> DynamicShapesError:
    return DynamicShapesError(
        f"AdditionalInputs: {path} {what}, and that cannot vary in one program\n"
        "  instead: calls that differ in sizes and numbers only; export once for each other value",
        path,
    )
