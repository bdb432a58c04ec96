"""What is known of classes does not keep all of them alive."""

from __future__ import annotations

import gc
import weakref

from lostwax.capture.python.per_class import PerClass


def test_a_class_is_asked_for_once() -> None:
    asked: list[type] = []
    known = PerClass(lambda cls: asked.append(cls) or cls.__name__)  # type: ignore[func-returns-value]
    assert [known[int], known[int], known[str]] == ["int", "int", "str"]
    assert asked == [int, str]


def test_classes_are_forgotten() -> None:
    known = PerClass(lambda cls: cls.__mro__)
    seen = []
    for i in range(2500):
        made = type(f"Made{i}", (), {})
        assert known[made][0] is made
        seen.append(weakref.ref(made))
    del made
    gc.collect()
    assert sum(each() is not None for each in seen) <= 1000
