"""Names of a lower layer that lead to a higher one, as `program.to_edge()` does, imported late; and
backends, which are found by their names.

A lower layer asks here for a name; only the face, which stands above all layers, says where each
is. So no layer knows those above it. A backend of lostwax is a folder of `lostwax/backends` with
the partitioner in it; other packages declare theirs as entry points. Must not import torch, nor
what does, before one is asked for. Layer 0: imports nothing of the package but errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from lostwax.errors import LostwaxError

_homes: dict[str, str] = {}


def set_homes(homes: Mapping[str, str]) -> None:
    """Say for each name in which module it is."""
    _homes.update(homes)


def late_import(name: str) -> Any:
    """What a name stands for; its module is loaded now."""
    return getattr(import_module(_homes[name]), name)


BACKENDS = "lostwax.backends"
"""The group of entry points: of classes of partitioners."""


def find_partitioner(name: str | None, refuse: type[LostwaxError] | None = None) -> Any:
    """The partitioner of a backend; None without a name."""
    from lostwax.errors import LoweringError, did_you_mean

    if not name:
        return None
    known = list_backends()
    if name not in known:
        raise (refuse or LoweringError)(
            f"there is no backend {name!r}{did_you_mean(name, known)}\n"
            f"  instead: {', '.join(sorted(known))}; a partitioner of your own is an entry point "
            f"of the group {BACKENDS}, or goes to "
            "lostwax.to_edge_transform_and_lower(partitioner=...)"
        )
    return known[name].load()()


def list_backends() -> dict[str, EntryPoint]:
    """All backends, by name."""
    import pkgutil
    from importlib.metadata import EntryPoint, entry_points
    from importlib.util import find_spec

    folder = find_spec(BACKENDS)
    assert folder is not None
    names = [m.name for m in pkgutil.iter_modules(folder.submodule_search_locations) if m.ispkg]
    homes = {n: f"{BACKENDS}.{n}.partitioner:{n.title()}Partitioner" for n in names}
    own = [EntryPoint(name, home, BACKENDS) for name, home in homes.items()]
    return {each.name: each for each in (*entry_points(group=BACKENDS), *own)}
