"""Real tensors that `forward` reads as they are: their values are in the program, not whatever lies
in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lostwax.capture import export
from lostwax.errors import CaptureError, UnsupportedFakeError
from tests.capture.compare import exported

READS: dict[str, Callable[[Any, Tensor], Any]] = {
    "numpy": lambda m, x: x * torch.from_numpy(m.table.numpy()),
    "an array": lambda m, x: x * torch.tensor(np.asarray(m.table) * 2),
    "detached": lambda m, x: x * torch.from_numpy(m.table.detach().numpy()) + m.table.detach(),
    "data": lambda m, x: x * float(m.table.data.numpy().sum()) + m.table.data,
    "a list": lambda m, x: x * sum(m.table.tolist()),
    "converted": lambda m, x: x * m.table.detach().to(torch.float64).detach().cpu(),
}


class Reading(nn.Module):
    def __init__(self, read: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(4))
        self.table, self.held, self.read = torch.arange(4.0) + 0.5, [self.state], read

    def forward(self, x: Tensor) -> Any:
        return self.read(self, x)


@pytest.mark.parametrize("name", READS)
def test_constants_are_read_as_they_are(name: str) -> None:
    exported(Reading(READS[name]), torch.randn(4))


def test_what_the_program_computes_is_not_read() -> None:
    with pytest.raises(UnsupportedFakeError, match=r"numpy\(\) needs the data"):
        export(Reading(lambda m, x: x * float(m.table.view(2, 2).numpy().sum())), (torch.ones(4),))


def test_state_is_not_baked_in() -> None:
    for read in (lambda m, x: x * float(m.held[0].numpy().sum()), lambda m, x: m.held[0].detach()):
        with pytest.raises(
            CaptureError,
            match=r"the buffer state is reached past[\s\S]*at \S+/test_raw_constants[\s\S]*instead",
        ):
            export(Reading(read), (torch.ones(4),))
    with pytest.raises(CaptureError, match=r"constant .* is written to"):
        export(Reading(lambda m, x: m.table.data.add_(1) + x), (torch.ones(4),))
