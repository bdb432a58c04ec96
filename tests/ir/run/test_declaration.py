"""What an error proposes to declare, applied: the program is captured again, and takes the call."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
import torch

from lostwax import Dim, export
from lostwax.errors import InputValueError

BATCH, ROWS = Dim("batch", min=1, max=8), Dim("rows")


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


def scale(x, y, factor=2.0, count=3):
    return (x.sum() + y.sum()) * factor + count


def add(x, y):
    return x + y["z"][1]


def sum_pair(pair, *more, **named):
    return pair.left.sum() + sum(x.sum() for x in more) + named["k"].sum()


CASES = {
    "a size": (scale, (ones(3, 4), ones(5)), {}, (ones(3, 6), ones(5)), {}, '{"x": {1: Dim("n")}}'),
    "two sizes that were equal": (
        scale,
        (ones(3, 4), ones(4)),
        {},
        (ones(3, 6), ones(6)),
        {},
        '{"x": {1: Dim("n")}, "y": {0: Dim("n")}}',
    ),
    "two sizes": (
        scale,
        (ones(3, 4), ones(5)),
        {},
        (ones(7, 4), ones(6)),
        {},
        '{"x": {0: Dim("n")}, "y": {0: Dim("n_1")}}',
    ),
    "what is declared stays": (
        scale,
        (ones(3, 4), ones(7)),
        {"x": {0: BATCH}, "y": {0: 2 * BATCH + 1}},
        (ones(5, 6), ones(11)),
        {},
        '{"x": {0: Dim("batch", min=1, max=8), 1: Dim("n")}, '
        '"y": {0: 2*Dim("batch", min=1, max=8) + 1}}',
    ),
    "hints stay": (
        scale,
        (ones(3, 4), ones(7)),
        {"x": {0: Dim.AUTO}, "y": {0: Dim.DYNAMIC(max=9)}},
        (ones(5, 6), ones(8)),
        {},
        '{"x": {0: Dim.AUTO, 1: Dim("n")}, "y": {0: Dim.DYNAMIC(max=9)}}',
    ),
    "a name that is taken": (
        scale,
        (ones(3, 4), ones(7)),
        {"y": {0: Dim("n")}},
        (ones(5, 4), ones(8)),
        {},
        '{"x": {0: Dim("n_1")}, "y": {0: Dim("n")}}',
    ),
    "a limit": (
        scale,
        (ones(3, 4), ones(7)),
        {"x": {0: BATCH}},
        (ones(12, 4), ones(7)),
        {},
        '{"x": {0: Dim("batch", min=1, max=12)}}',
    ),
    "one Dim that must be two": (
        scale,
        (ones(3, 4), ones(3)),
        {"x": {0: ROWS}, "y": {0: ROWS}},
        (ones(3, 4), ones(5)),
        {},
        '{"x": {0: Dim("rows")}, "y": {0: Dim("n")}}',
    ),
    "numbers": (
        scale,
        (ones(3, 4), ones(3), 2.0, 3),
        {},
        (ones(3, 4), ones(3), 4.0, 3),
        {},
        '{"factor": Dim.DYNAMIC}',
    ),
    "all numbers": (
        scale,
        (ones(3, 4), ones(3), 2.0, 3),
        {"count": Dim.DYNAMIC},
        (ones(3, 4), ones(3), 4.0, 7),
        {},
        '{"factor": Dim.DYNAMIC, "count": Dim.DYNAMIC}',
    ),
    "inside of containers": (
        add,
        (ones(4), {"z": (None, ones(4)), "w": 1}),
        {},
        (ones(3), {"z": (None, ones(3)), "w": 1}),
        {},
        '{"x": {0: Dim("n")}, "y": {"z": (None, {0: Dim("n")})}}',
    ),
    "all kinds of arguments": (
        sum_pair,
        (Pair(ones(2), [1]), ones(3), ones(4)),
        {},
        (Pair(ones(5), [1]), ones(3), ones(6)),
        {"k": ones(7)},
        '{"pair": {"left": {0: Dim("n")}}, "more_1": {0: Dim("n_1")}, "k": {0: Dim("n_2")}}',
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_proposed_works(name):
    function, args, declared, call, kwargs, wanted = CASES[name]
    example = {key: ones(2) for key in kwargs}
    program = export(function, args, example, dynamic_shapes=declared or None)
    with pytest.raises(InputValueError) as error:
        program.module()(*call, **kwargs)
    found = re.search(r"dynamic_shapes=(\{.*\})(, or for this one)?$", str(error.value), re.M)
    assert found is not None
    assert found[1] == wanted
    again = export(function, args, example, dynamic_shapes=eval(found[1], {"Dim": Dim}))
    torch.testing.assert_close(
        torch.as_tensor(again.module()(*call, **kwargs)),
        torch.as_tensor(function(*call, **kwargs)),
    )


# ------------------------------------------------------------------------------------------ devices


class Shifted(torch.nn.Module):
    def forward(self, x):
        return x + torch.arange(x.shape[0], device=x.device)


@pytest.mark.parametrize("module", [torch.nn.Linear(2, 3), Shifted()], ids=["state", "no state"])
def test_a_program_is_for_one_device_until_it_is_moved(module):
    run = export(module, (ones(2, 2),)).module()
    with pytest.raises(InputValueError, match="is on meta, but the program was captured for cpu"):
        run(torch.ones(2, 2, device="meta"))
    moved = run.to("meta")
    assert moved(torch.ones(2, 2, device="meta")).device.type == "meta"
    with pytest.raises(InputValueError, match=r"is on cpu, .* for meta\n.*\n  fix: pass \w+\.to\("):
        moved(ones(2, 2))


def test_other_devices_are_refused_after_a_load_and_by_unflattened_modules(tmp_path):
    import lostwax

    program = export(torch.nn.Linear(2, 3), (ones(2, 2),))
    lostwax.save(program, tmp_path / "a.pt2")
    for run in (lostwax.load(tmp_path / "a.pt2").module(), lostwax.unflatten(program)):
        with pytest.raises(InputValueError, match="input is on meta"):
            run(torch.ones(2, 2, device="meta"))
        assert run.to("meta")(torch.ones(2, 2, device="meta")).is_meta
