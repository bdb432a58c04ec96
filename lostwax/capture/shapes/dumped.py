"""`dynamic_shapes` as plain data, for a file or a configuration, and back.

The form is that of torch.export's (`torch._export.serde.dynamic_shapes`, as a dict): each reads
what the other writes. Must not evaluate text that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lostwax.capture.shapes.dims import Auto, DerivedDim, Dim, Dynamic, IntVariable, Static, root_of
from lostwax.capture.shapes.spec import resolve_spec
from lostwax.errors import DynamicShapesError

_HINT = re.compile(r"_DimHint\.(AUTO|DYNAMIC|STATIC)(?:\((?:min=(\d+))?(?:, )?(?:max=(\d+))?\))?")
_DERIVED = re.compile(r"(?:(\d{1,18})\*)?([^\W\d]\w*)(?: ([+-]) (\d{1,18}))?")


def dump_dynamic_shapes(
    dynamic_shapes: Any, m: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What varies in a call, as data that JSON can hold; `load_dynamic_shapes` reads it.

    `dynamic_shapes` is whatever `export(m, args, kwargs, dynamic_shapes=...)` takes.
    """
    spec = resolve_spec(dynamic_shapes, m, args, kwargs)
    assert spec.call is not None
    if spec.constraints or any(isinstance(d.dim, IntVariable) for d in spec.named_dims.values()):
        raise DynamicShapesError(
            "dump_dynamic_shapes: relations and integers of a torch spec have no form as data\n"
            "  instead: Dims in dynamic_shapes, and relations in constraints=, which are text"
        )
    dims: dict[str, Any] = {
        name: {"min": named.dim.min, "max": named.dim.max, "derived": []}
        for name, named in sorted(spec.named_dims.items())
    }

    def write(entry: Any) -> Any:
        if isinstance(entry, tuple):
            return [write(each) for each in entry]
        if isinstance(entry, DerivedDim):
            derived = dims[root_of(entry).__name__]["derived"]
            derived += [] if str(entry) in derived else [str(entry)]
        text = str(entry)
        return None if entry is None else text.replace("Dim.", "_DimHint.", 1)

    return {"dynamic_shapes": spec.call.mirror([*map(write, spec.leaves)]), "dims": dims}


def load_dynamic_shapes(dumped: Mapping[str, Any]) -> Any:
    """The `dynamic_shapes` of `dumped`, which `dump_dynamic_shapes` wrote, or torch's with
    `to_dict=True`."""
    try:
        shapes, given = dumped["dynamic_shapes"], dumped["dims"]
        dims = {name: Dim(name, min=d["min"], max=d["max"]) for name, d in given.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise DynamicShapesError(
            f"load_dynamic_shapes: it is damaged ({type(error).__name__}: {error})\n"
            "  instead: what dump_dynamic_shapes returns, by way of JSON or not"
        ) from None

    def read(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [*map(read, value)]
        if isinstance(value, dict):
            return {key: read(each) for key, each in value.items()}
        return _read_entry(value, dims) if isinstance(value, str) else value

    made = read(shapes)
    return tuple(made) if isinstance(made, list) else made


def _read_entry(text: str, dims: Mapping[str, Dim]) -> Any:
    if hint := _HINT.fullmatch(text):
        limits = [None if each is None else int(each) for each in hint.groups()[1:]]
        if hint[1] == "STATIC":
            return Static()
        return (Auto if hint[1] == "AUTO" else Dynamic)(*limits)
    found = _DERIVED.fullmatch(text)
    if found is None or found[2] not in dims:
        known = ", ".join(dims) or "none"
        raise DynamicShapesError(
            f"load_dynamic_shapes: {text[:100]!r} is no size of its dims, which are {known}\n"
            '  instead: "n", "2*n + 1", "_DimHint.AUTO", "_DimHint.DYNAMIC" or "_DimHint.STATIC"'
        )
    scale, offset = int(found[1] or 1), int(f"{found[3] or '+'}{found[4] or 0}")
    return scale * dims[found[2]] + offset
