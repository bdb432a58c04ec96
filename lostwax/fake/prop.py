"""FakeTensorProp: run an FX graph on fakes and note each node's value.

`meta["val"]` gets snapshots, so that an in-place change of metadata later in the graph does not
falsify what earlier nodes recorded. Must not change the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_map_only

from lostwax.fake.asked_tensor import is_marked
from lostwax.fake.mode import FakeTensorMode, detect_fake_mode
from lostwax.fake.tensor import FakeTensor, new_fake


class FakeTensorProp(Interpreter):
    """Propagate fakes through a graph module: `FakeTensorProp(gm, mode).propagate(*inputs)`."""

    def __init__(self, module: GraphModule, mode: FakeTensorMode | None = None) -> None:
        super().__init__(module)
        self._mode = mode

    def propagate(self, *args: Any) -> Any:
        """Convert the real inputs, run, and fill `meta["val"]`."""
        mode, inputs = self._choose_mode(args)
        return self._run(mode, tree_map_only(torch.Tensor, mode.from_tensor, inputs))

    def propagate_dont_convert_inputs(self, *args: Any) -> Any:
        """The same for inputs that are fakes already."""
        return self._run(*self._choose_mode(args))

    def _choose_mode(self, args: Any) -> tuple[FakeTensorMode, Any]:
        """The mode to run in, and the inputs in it. A program's fakes are those of its capture,
        which would record what is run here: a mode that records nothing takes them over."""
        mode = self._mode or detect_fake_mode(args) or FakeTensorMode()
        if self._mode is not None or type(mode) is FakeTensorMode:
            return mode, args
        plain = FakeTensorMode(shape_env=mode.shape_env)

        def take_over(fake: FakeTensor) -> FakeTensor:
            return new_fake(plain, fake.fake_type, fake.fake_storage, is_marked(fake))

        return plain, tree_map_only(FakeTensor, take_over, args)

    def _run(self, mode: FakeTensorMode, args: Any) -> Any:
        # Parameters and buffers of the module are real: they may meet operators here.
        allowed, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
        try:
            with mode:
                return super().run(*args)
        finally:
            mode.allow_non_fake_inputs = allowed

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        n.meta["val"] = tree_map_only(FakeTensor, FakeTensor.snapshot, result)
        return result

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        if isinstance(value, torch.Tensor):
            mode = detect_fake_mode()
            assert mode is not None
            return mode.from_tensor(value, static_shapes=True)
        return value
