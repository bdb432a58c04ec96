"""What holds something that code may exchange: containers, and the attributes of objects, classes,
Python modules and tensors, which are read and written like dictionaries.

No method of a user's class is called. Must not know which objects have which of these.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, filterfalse
from types import GetSetDescriptorType, MappingProxyType, MemberDescriptorType
from typing import Any, NamedTuple

from torch import nn

MISSING: Any = type("_Gone", (), {"__repr__": lambda self: "not there"})()
"""Stands for the value of a slot, attribute or key that is not set."""
CONTAINERS = frozenset((list, dict, set, OrderedDict, defaultdict, deque))
"""Python's own containers whose content can change."""
Content = list[tuple[Any, Any]]
"""Keys and values."""


class SlotAttributes:
    """An object's `__slots__` attributes, with the methods of a dict."""

    def __init__(self, owner: Any, places: dict[str, Any]) -> None:
        self.owner = owner
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def values(self) -> Iterable[Any]:
        return self.copy().values()

    def copy(self) -> dict[str, Any]:
        return {name: self[name] for name in self._places}

    def __getitem__(self, name: str) -> Any:
        """What is in the slot, though a class may show something else by its name."""
        try:
            return self._places[name].__get__(self.owner)
        except AttributeError:
            return MISSING

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets it even if the class forbids that, as a frozen dataclass does."""
        if value is not MISSING:
            self._places[name].__set__(self.owner, value)
        elif self[name] is not MISSING:
            self._places[name].__delete__(self.owner)

    def clear(self) -> None:
        self.update(dict.fromkeys(self._places, MISSING))

    def update(self, content: dict[str, Any]) -> None:
        for name, value in content.items():
            self[name] = value


class ClassAttributes:
    """The attributes of a class, with the methods of a dict."""

    def __init__(self, owner: type) -> None:
        self.owner = owner

    def __len__(self) -> int:
        return len(vars(self.owner))

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self.owner))

    def values(self) -> Iterable[Any]:
        return vars(self.owner).values()

    def copy(self) -> dict[str, Any]:
        return dict(vars(self.owner))

    def clear(self) -> None:
        """Does nothing: `update` deletes what the new content lacks."""

    def update(self, content: dict[str, Any]) -> None:
        now = self.copy()
        for name in now.keys() - content.keys():
            type.__delattr__(self.owner, name)
        for name, value in content.items():
            if now.get(name, MISSING) is not value:
                type.__setattr__(self.owner, name, value)


NAMED = (dict, SlotAttributes, ClassAttributes)
"""Classes of what holds values by name."""


class NamedAttributes(NamedTuple):
    """Those attributes of a Python module that code names, or all of them."""

    held: dict[str, Any]
    names: tuple[str, ...] | None


class TensorAttributes(NamedTuple):
    """The attributes that users have given to a tensor."""

    held: dict[str, Any]


# ---------------------------------------------------------------------------------- what is in them


def members(container: Any) -> Any:
    """The values in a container or tuple."""
    if isinstance(container, dict) and type(container) is not dict:
        return [value for _, value in own_items(container)]
    if isinstance(container, NAMED):
        return container.values()
    base = find_base(container)  # a subclass's method is the user's
    return container if type(container) is base else [*base.__iter__(container)]


def items(container: Any) -> list[tuple[Any, Any]]:
    """The keys and values in a container or tuple."""
    if isinstance(container, NAMED):
        return own_items(container if isinstance(container, dict) else container.copy())
    base = find_base(container)
    values = base.__iter__(container)
    return [(each, each) for each in values] if base is set else list(enumerate(values))


def own_items(container: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items of a dict, without calling a subclass's methods: they may load or count."""
    if type(container) is dict:
        return list(container.items())
    keys = (
        OrderedDict.keys(container) if isinstance(container, OrderedDict) else dict.keys(container)
    )
    return [(key, dict.get(container, key)) for key in list(keys)]


def size(container: Any) -> int:
    """How many values are in a container or tuple."""
    return int(find_base(container).__len__(container))


def find_base(container: Any) -> Any:
    """Python's own class of a container, whose methods do what is expected of them."""
    return next((each for each in _BASES if isinstance(container, each)), type(container))


def has_items(place: Any) -> bool:
    """Has it keys and values? (An array, or what C keeps, has none.)"""
    return isinstance(place, _WITH_ITEMS)


_WITH_ITEMS = (*NAMED, list, set, deque)
_BASES = (tuple, list, set, deque, OrderedDict, dict)


# ----------------------------------------------------------------------------- attributes and slots


def find_attributes(cls: type) -> Any:
    """What reads the dictionary of an object of the class, whatever the class shows as `__dict__`.

    There is none for slots alone, and where a class hides the dictionary: a proxy whose `__dict__`
    is that of what it stands for, a `TypeVar` of Python 3.12.
    """
    named = (vars(each).get("__dict__") for each in cls.__mro__)
    own = (each for each in named if type(each) in (GetSetDescriptorType, MemberDescriptorType))
    return next(own, None) if cls.__dictoffset__ else None


def find_slots(cls: type) -> dict[str, Any]:
    return {name: place for each in cls.__mro__ for name, place in find_own_slots(each).items()}


def find_own_slots(cls: type) -> dict[str, Any]:
    """Those that the class itself has; classes of C have members, too."""
    named = vars(cls).items() if "__slots__" in vars(cls) else ()
    return {name: place for name, place in named if type(place) is MemberDescriptorType}


# ---------------------------------------------------------------- the attributes of all the modules


class ModuleAttributes:
    """The attributes of some modules when this was made, sorted by class once for all walks.

    There are hundreds of modules with dozens of attributes each, nearly all of them empty
    containers; so all of this runs in C.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        self.held = [*map(vars, modules)]
        """The dictionary of each module."""
        self._values = [*chain.from_iterable(map(dict.values, self.held))]
        self._classes = [*map(type, self._values)]
        self._kinds = {*self._classes}
        plain = [*compress(self._values, map(PLAIN_CONTAINERS.__contains__, self._classes))]
        self.filled = [*filter(None, plain)]
        """The containers and tuples with something in them."""
        self.empty = [*filterfalse(None, plain)]
        """The containers and tuples with nothing in them."""

    def select(self, is_wanted: Callable[[type], Any]) -> list[Any]:
        """The values whose class is wanted."""
        if classes := self._find_classes(is_wanted):
            return [*compress(self._values, map(classes.__contains__, self._classes))]
        return []

    def select_named(self, is_wanted: Callable[[type], Any]) -> Iterator[tuple[str, Any]]:
        """The same values, each with the name of its attribute."""
        if classes := self._find_classes(is_wanted):
            named = chain.from_iterable(map(dict.items, self.held))
            return compress(named, map(classes.__contains__, self._classes))
        return iter(())

    def _find_classes(self, is_wanted: Callable[[type], Any]) -> set[type]:
        return {cls for cls in self._kinds if is_wanted(cls)}


PLAIN_CONTAINERS = CONTAINERS | {tuple, frozenset, MappingProxyType}
"""Python's own classes of what holds other values, and is nothing more."""
