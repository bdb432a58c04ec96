"""Programs as ONNX models in onnxruntime, for the tests of `lostwax.onnx`: written, checked by
`onnx.checker`, run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

REASON = "not installed: make consumers"
onnx = pytest.importorskip("onnx", reason=REASON)
onnx_ir = pytest.importorskip("onnx_ir", reason=REASON)
onnxruntime = pytest.importorskip("onnxruntime", reason=REASON)
onnxruntime.set_default_logger_severity(4)
OPSETS = (18, 23, 26)


class Session:
    """A model in onnxruntime; called with the user's arguments it returns the results' leaves."""

    def __init__(self, program: Any, opset: int = 23, **options: Any) -> None:
        self.model = program.to_onnx(opset=opset, **options)
        proto = onnx_ir.to_proto(self.model)
        onnx.checker.check_model(proto, full_check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        self.state: dict[str, Any] = {}
        self.session = onnxruntime.InferenceSession(proto.SerializeToString(), options)

    @property
    def nodes(self) -> list[str]:
        """The operators of the model, in order."""
        return [node.op_type for node in self.model.graph]

    def __call__(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        leaves = [as_array(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if is_input(leaf)]
        names = [each.name for each in self.session.get_inputs()]
        return self.feed(dict(zip(names, leaves, strict=False)))

    def feed(self, given: dict[str, Any]) -> list[Tensor]:
        """The results; what the model writes is kept, and handed over in the next call."""
        pairs = json.loads(self.model.metadata_props.get("lostwax.state", "{}"))
        names = [each.name for each in self.session.get_outputs()]
        inputs = {each.name for each in self.session.get_inputs()}
        kept = {name: x for name, x in self.state.items() if name not in inputs}
        found = dict(zip(names, self.session.run(None, kept | given), strict=True))
        self.state |= {name: found.pop(new) for name, new in pairs.items()}
        return [torch.from_numpy(each) for each in found.values()]


def is_input(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def as_array(x: Tensor) -> Any:
    return x.detach().contiguous().numpy()


def compare(
    session: Session, module: Callable[..., Any], call: Sequence[Any], tol: float = 1e-4
) -> None:
    """The model gives what the module gives."""
    with torch.no_grad():
        wanted = [each for each in pytree.tree_leaves(module(*call)) if each is not None]
    got = session(*call)
    tensors = [
        torch.as_tensor(w, dtype=g.dtype) if not isinstance(w, Tensor) else w
        for g, w in zip(got, wanted, strict=True)
    ]
    torch.testing.assert_close(got, tensors, rtol=tol, atol=tol, equal_nan=True, check_device=False)
