"""Fake tensors: everything about a tensor but its data."""

from lostwax.fake.mode import FakeTensorMode, detect_fake_mode, unset_fake_temporarily
from lostwax.fake.storage import FakeStorage
from lostwax.fake.tensor import FakeTensor

__all__ = [
    "FakeStorage",
    "FakeTensor",
    "FakeTensorMode",
    "detect_fake_mode",
    "unset_fake_temporarily",
]
