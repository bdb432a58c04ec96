"""Loops over a length that varies whose bodies append to a list, against eager."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from lostwax.errors import CaptureError, ConstraintViolationError
from lostwax.torch_version import TORCH

Function = Callable[..., Any]
EXAMPLE, SIZES = 5, (1, 2, 3, 8)


def export_rows(function: Any, *more: Tensor, least: int = 1, example: int = EXAMPLE) -> Any:
    """A program of a function of a tensor with a number of rows that varies."""
    sizes = ({0: Dim("n", min=least, max=1000)}, *({} for _ in more))
    x = make_rows(example)
    return lostwax.export(function, (x, *more), dynamic_shapes=sizes, control_flow="sizes")


def make_rows(n: int) -> Tensor:
    return torch.randn(n, 2, 3, generator=torch.Generator().manual_seed(n))


def list_calls(program: Any) -> list[str]:
    """The names of the operators with sub-graphs that it calls."""
    nodes = [node for each in program.graph_module.modules() for node in each.graph.nodes]
    found = [str(node.target) for node in nodes if node.op == "call_function"]
    return [name for name in found if name in ("scan", "while_loop", "cond")]


# ---------------------------------------------------------------------------- what users write


def recur(x: Tensor) -> Any:
    outs, h = [], torch.zeros(2, 3)
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        outs.append(h)
    return torch.stack(outs, 1), h


def recur_from_behind(x: Tensor) -> Tensor:
    forward, backward = [], []
    h = g = x.new_zeros(2, 3)
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        forward.append(h)
    for t in reversed(range(x.shape[0])):
        g = torch.tanh(g - x[t])
        backward.append(g)
    backward.reverse()
    return torch.cat([torch.stack(forward), torch.stack(backward)], -1)


def count_down(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0] - 1, -1, -1):
        found.append(x[t] * t)
    return torch.stack(found[::-1])


def every_second(x: Tensor) -> Tensor:
    found = []
    for t in range(0, x.shape[0], 2):
        found.append(x[t])
    return torch.cat(found, dim=-1)


def append_before(x: Tensor) -> Any:
    states, h = [], torch.zeros(2, 3)
    for t in range(x.shape[0]):
        states.append(h)
        h = h * 0.5 + x[t]
    return torch.stack(states), h


def two_lists(x: Tensor) -> Any:
    sums, products = list(), []  # noqa: C408
    s, p = torch.zeros(2, 3), torch.ones(2, 3)
    for row in x:
        s, p = s + row, p * row
        sums.append(s)
        products += [p]
    return torch.stack(sums, dim=-1), torch.cat(products)


def with_a_first(x: Tensor) -> Tensor:
    found = [torch.ones(2, 3)]
    for t in range(x.shape[0]):
        found.append(x[t] * 2)
    found.append(torch.zeros(2, 3))
    return torch.stack(found, 1)


def read_the_last(x: Tensor) -> Tensor:
    states = [torch.zeros(2, 3)]
    for t in range(x.shape[0]):
        states.append(torch.tanh(states[-1] + x[t]))
    return torch.stack(states[1:]) + states[-1] + states[0]


def two_a_turn(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        found.append(x[t] + 1)
        found.extend([x[t] * 2])
    return torch.stack(found, 2)


def lengths_and_ends(x: Tensor) -> Any:
    found = []
    for i, row in enumerate(x):
        found.append(row * i)
    if not found:
        return x
    return found[-1] + found[0], len(found), torch.stack(found).sum(0) / len(found)


def numbers_are_handed_on(x: Tensor) -> Any:
    found, n, scale, is_even = [], 0, 1.0, True
    for t in range(x.shape[0]):
        found.append(x[t] * n * scale + (1 if is_even else 2))
        n += 2
        scale = scale * 0.5
        is_even = not is_even
    return torch.stack(found), n, scale, is_even


def the_last_index(x: Tensor) -> Any:
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
    return torch.stack(found), t


def a_branch_inside(x: Tensor) -> Tensor:
    found, h = [], torch.zeros(2, 3)
    for t in range(x.shape[0]):
        if x[t].sum() > 0:
            h = h + x[t]
        else:
            h = h * 0.5
        found.append(h)
    return torch.stack(found)


def a_loop_inside(x: Tensor) -> Tensor:
    table = []
    for i in range(x.shape[0]):
        row = []
        for j in range(x.shape[0]):
            row.append((x[i] * x[j]).sum())
        table.append(torch.stack(row))
    return torch.stack(table)


def flat_from_two_loops(x: Tensor) -> Tensor:
    found = []
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            found.append((x[i] - x[j]).abs().sum())
    return torch.stack(found)


def a_comprehension(x: Tensor) -> Tensor:
    return torch.stack([x[t].cumsum(0) * t for t in range(x.shape[0])], 1)


def one_loop_after_another(x: Tensor) -> Tensor:
    first, second = [], []
    for t in range(x.shape[0]):
        first.append(x[t].sin())
    carry = torch.zeros(2, 3)
    for a, b in zip(first, x, strict=True):
        carry = carry + a * b
        second.append(carry)
    for i, a in enumerate(reversed(second)):
        carry = carry - a * i
    return carry + torch.cat(second).sum()


def in_place_beside(x: Tensor) -> Any:
    found, out = [], torch.zeros_like(x)
    for t in range(x.shape[0]):
        out[t] = x[t] * 2
        found.append(x[t] + 1)
    return torch.stack(found), out


def running_maximum(x: Tensor) -> Tensor:
    best, found = x[0], []
    for t in range(x.shape[0]):
        best = torch.maximum(best, x[t])
        found.append(best)
    return torch.stack(found, -1)


def joined_by_plus(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
    return torch.cat([torch.ones(2, 3)] + found)  # noqa: RUF005


def ask_inside(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        before = found[-1] if found else torch.ones(2, 3)
        found.append(before * 0.5 + x[t] * len(found))
    return torch.stack(list(found))


def go_on_with_the_last(x: Tensor) -> Any:
    found = []
    for row in x:
        found.append(row)
    for row in x:
        found.append(found[-1] * 0.5 + row)
    return torch.stack(tuple(found)), len(found)


def append_by_a_function(x: Tensor) -> Tensor:
    found = []

    def keep(value: Tensor) -> None:
        found.append(value * 2)

    for t in range(x.shape[0]):
        keep(x[t])
    return torch.stack(found)


def append_for_another(x: Tensor) -> Tensor:
    found: list[Tensor] = []
    fill_in(found, x)
    return torch.cat(found)


def fill_in(found: list[Tensor], x: Tensor) -> None:
    for row in x:
        found.append(row + 1)


def lists_in_containers(x: Tensor) -> Any:
    layers, named = [[] for _ in range(2)], {"sums": [], "rows": []}
    for t in range(x.shape[0]):
        layers[0].append(x[t])
        layers[1].append(x[t] * 2)
        named["sums"].append(x[t].sum())
    return [torch.stack(each) for each in layers], torch.stack(named["sums"]), named["rows"]


def sum_it(x: Tensor) -> Any:
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
    return sum(found)


WRITTEN = [
    recur, recur_from_behind, count_down, every_second, append_before, two_lists, with_a_first,
    read_the_last, two_a_turn, lengths_and_ends, numbers_are_handed_on, the_last_index,
    a_branch_inside, a_loop_inside, flat_from_two_loops, a_comprehension, one_loop_after_another,
    in_place_beside, running_maximum, joined_by_plus, ask_inside, go_on_with_the_last,
    append_by_a_function, append_for_another, lists_in_containers, sum_it,
]  # fmt: skip


@pytest.mark.parametrize("function", WRITTEN, ids=lambda f: f.__name__)
def test_one_program_serves_all_lengths(function: Function) -> None:
    program = export_rows(function)
    run = program.module()
    for n in SIZES:
        x = make_rows(n)
        torch.testing.assert_close(run(x), function(x), rtol=0, atol=0)
    assert "scan" in list_calls(program)


def a_number_from_data(x: Tensor, n: Tensor) -> Any:
    found, h = [], torch.zeros(2, 3)
    for t in range(n.item()):  # type: ignore[arg-type]
        h = h + x[t]
        found.append(h)
    return torch.cat(found, 1), len(found)


def rows_from_data(x: Tensor) -> Tensor:
    found = []
    for row in x[x.sum((1, 2)) > 0]:
        found.append(row * 2)
    return torch.stack(found)


def test_data_decide_how_often() -> None:
    run = lostwax.export(a_number_from_data, (make_rows(8), torch.tensor(3))).module()
    for n in (1, 2, 8):
        call = make_rows(8), torch.tensor(n)
        torch.testing.assert_close(run(*call), a_number_from_data(*call))
    with pytest.raises(Exception, match="expected a non-empty list"):  # as in eager
        run(make_rows(8), torch.tensor(0))
    with pytest.raises(Exception, match="required"):
        run(make_rows(8), torch.tensor(9))
    run = lostwax.export(rows_from_data, (make_rows(8),)).module()
    for x in (make_rows(8), make_rows(8) + 1, make_rows(8) * -1):
        torch.testing.assert_close(run(x), rows_from_data(x))


# ------------------------------------------------------------------------------ it may not run


def perhaps_none(x: Tensor, n: Tensor) -> Any:
    found, total = [], torch.zeros(2, 3)
    for t in range(n):  # type: ignore[call-overload]
        found.append(x[t] * 2)
    for each in found:
        total = total + each
    return len(found), total, torch.stack(found).sum(0) if found else total - 1


def perhaps_none_after_one(x: Tensor, n: Tensor) -> Tensor:
    found = [x[0]]
    for t in range(1, int(n)):
        found.append(found[-1] + x[t])
    return torch.stack(found)


def perhaps_no_row(x: Tensor, n: Tensor) -> Any:
    found = []
    for row in x[x.sum((1, 2)) > n]:
        found.append(row.sum())
    return len(found), torch.stack([*found, n.float()])


def perhaps_none_of_some(x: Tensor, n: Tensor) -> Any:
    found, h, k = [], x[0], 0
    for t in range(int(n), 0, -2):
        h, k = h + x[t - 1], k + t
        if h.sum() > 0:
            found.append((h, k, x[:t]))
    if not found:
        return h, k, x[:1]
    return h, found[-1][1], torch.cat([rows for _, _, rows in found])


def perhaps_none_in_a_function(x: Tensor, n: Tensor) -> Any:
    def double(count: Any) -> Any:
        return [x[t] * 2 for t in range(count)]

    total = x[0]
    for k in range(2):
        for each in double(int(n) - k):
            total = total + each
    while total.sum() < 50:
        total = total + 4 + len(double(int(n)))
    return total


def perhaps_nothing_written(x: Tensor, n: Tensor) -> Any:
    y, places = torch.zeros(8, 2, 3), []
    for t in range(int(n)):
        y[t] = x[t]
        places.append(t)
    return y, len(places)


def perhaps_left_unset(x: Tensor, n: Tensor) -> Any:
    found = []
    for t in range(int(n)):
        row = x[t]
        found.append(row)
    return row if found else x[0] * 2


def perhaps_none_until_one_is_left(x: Tensor, n: Tensor) -> Any:
    found = []
    for t in range(int(n)):
        if t == 2:
            break
        found.append(x[t])
    return torch.stack(found) if found else x[:1]


MAYBE_NONE = [
    perhaps_none, perhaps_none_after_one, perhaps_no_row, perhaps_none_of_some,
    perhaps_none_until_one_is_left,
    perhaps_none_in_a_function, perhaps_nothing_written, perhaps_left_unset,
]  # fmt: skip


@pytest.mark.parametrize("function", MAYBE_NONE, ids=lambda f: f.__name__)
def test_a_loop_on_data_may_append_nothing(function: Function) -> None:
    run = lostwax.export(function, (make_rows(8), torch.tensor(3))).module()
    for n in (3, 0, 1, 8, -2):
        x, own = make_rows(8).requires_grad_(), make_rows(8).requires_grad_()
        wanted, found = function(x, torch.tensor(n)), run(own, torch.tensor(n))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(_differentiate(found, own), _differentiate(wanted, x))


def _differentiate(found: Any, x: Tensor) -> Tensor | None:
    tensors = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor) and t.requires_grad]
    if tensors:
        sum(t.square().sum() for t in tensors).backward()  # type: ignore[union-attr]
    return x.grad


def in_the_first_turns(x: Tensor, n: Tensor) -> Any:
    found, numbers = [], []
    for t in range(int(n)):
        if t < 3:
            found.append(x[t])
        if t % 2 == 0:
            numbers.append(t * 2)
    return len(found), torch.cat([x[0], *found]), numbers[-1] if numbers else -1


def more_in_the_first_turn(x: Tensor, n: Tensor) -> Any:
    found = [x[0]]
    for t in range(int(n)):
        if t == 0:
            found.append(x[t])
            found.append(x[t] * 2)
        else:
            found.append(found[-1] - x[t])
    return torch.stack(found)


def none_in_the_first_turn(x: Tensor, n: Tensor) -> Any:
    found = []
    for t in range(int(n)):
        for k in range(t):
            found.append((k, x[k]))
    return len(found), found[-1][0] if found else -1


@pytest.mark.parametrize(
    "function", [in_the_first_turns, more_in_the_first_turn, none_in_the_first_turn]
)
def test_the_first_turn_appends_otherwise(function: Function) -> None:
    """What it appends is known in the first recording, which knows the number of its turn."""
    run = lostwax.export(function, (make_rows(8), torch.tensor(3))).module()
    for n in (3, 0, 1, 2, 5, 8):
        call = make_rows(8), torch.tensor(n)
        torch.testing.assert_close(run(*call), function(*call))


def test_a_loop_that_may_append_nothing_is_kept_in_files_and_captured_again() -> None:
    program = lostwax.export(perhaps_none, (make_rows(8), torch.tensor(3)), strict=True)
    assert {"cond", "scan"} <= {*list_calls(program)}
    file = BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    again = lostwax.export(program.module(), program.example_inputs[0])
    for each in (lostwax.load(file), again, program.run_decompositions()):
        for n in (0, 5):
            call = make_rows(8), torch.tensor(n)
            torch.testing.assert_close(each.module()(*call), perhaps_none(*call))


def a_number_if_it_does_not_run(x: Tensor, n: Tensor) -> Any:
    found, total = [], 0
    for t in range(int(n)):
        total = total + x[t].sum()  # type: ignore[assignment]
        found.append(total)
    return total, len(found)


def test_a_loop_that_may_not_run_leaves_another_kind_of_value() -> None:
    run = lostwax.export(a_number_if_it_does_not_run, (make_rows(8), torch.tensor(3))).module()
    for n in (3, 1, 0):
        call = make_rows(8), torch.tensor(n)
        got, want = run(*call), a_number_if_it_does_not_run(*call)
        assert [*map(type, got)] == [*map(type, want)]
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_a_float_decides_how_often(dtype: torch.dtype) -> None:
    def repeat(x: Tensor, f: Tensor) -> Any:
        h, found = x[0], []
        for t in range(int(f) * 2 - 1):
            h = h + t
            found.append(h)
        return torch.stack(found), [x * t for t in range(round(f.item()))][-1]

    run = lostwax.export(repeat, (make_rows(8), torch.tensor(3, dtype=dtype))).module()
    for f in (1.0, 2.7, 3.2):
        call = make_rows(8), torch.tensor(f, dtype=dtype)
        torch.testing.assert_close(run(*call), repeat(*call))


def test_slices_along_a_dimension() -> None:
    def zip_slices(x: Tensor) -> Any:
        found = []
        y = x.transpose(0, 1)
        for a, b in zip(y.unbind(1), torch.unbind(y + 1, dim=1), strict=True):
            found.append(a * b)
        return torch.stack([each * i for i, each in enumerate(found)], 1)

    run = export_rows(zip_slices).module()
    for n in SIZES:
        torch.testing.assert_close(run(make_rows(n)), zip_slices(make_rows(n)))


class Decoder(nn.Module):
    """Teacher forcing: each step sees the true word before."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.cell = nn.LSTMCell(4, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, words: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        logits: list[Tensor] = []
        h, c = state
        for t in range(words.size(1)):
            h, c = self.cell(self.embed(words[:, t]), (h, c))
            logits.append(self.head(h))
        return torch.stack(logits, dim=1), (h, c)


def make_words(batch: int, length: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    state = torch.zeros(batch, 4), torch.ones(batch, 4)
    return torch.randint(0, 10, (batch, length)), state


def export_decoder(module: nn.Module) -> Any:
    batch, length = Dim("batch", min=1, max=8), Dim("length", min=1, max=64)
    shapes = ({0: batch, 1: length}, ({0: batch}, {0: batch}))
    return lostwax.export(module, make_words(2, 6), dynamic_shapes=shapes, control_flow="sizes")


def windows(x: Tensor) -> Tensor:
    """What is selected are rows from a part on, backwards, of a view; or no rows."""
    found, y = [], x.transpose(1, 2)
    for t in range(1, x.shape[0]):
        row = y[t - 1][1:].t() + x[x.shape[0] - 1 - t, :, :2]
        found.append(row * x[t // 2].sum() + y[-t][0, 0])
    return torch.stack(found)


def test_selections_are_rows() -> None:
    program = export_rows(windows, least=2)
    (scan,) = program.graph.find_nodes(op="call_function", target=torch.ops.higher_order.scan)
    assert len(scan.args[2]) == 3  # the numbers of the turns, too, for x[t // 2]
    file = BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    for run in (program.module(), torch.export.load(file).module()):
        for n in (2, 3, 8):
            torch.testing.assert_close(run(make_rows(n)), windows(make_rows(n)))


def test_a_decoder_is_saved_decomposed_lowered_and_differentiated() -> None:
    module = Decoder()
    program = export_decoder(module)
    assert list_calls(program) == ["scan"]
    assert "_local_scalar_dense" not in str(program)  # words[:, t] are rows of the scan
    file = BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    ways = {
        "module": program.module(),
        "decomposed": program.run_decompositions().module(),
        "torch's own": torch.export.load(file).module(),
    }
    for batch, length in ((1, 1), (3, 2), (2, 9)):
        call = make_words(batch, length)
        for run in ways.values():
            torch.testing.assert_close(run(*call), module(*call))
    assert program.to_edge().to_executable()
    call = make_words(2, 4)
    gradients = []
    for run in (module, *ways.values()):
        run(*call)[0].square().sum().backward()
        gradients.append({name: p.grad for name, p in run.named_parameters()})
        for p in run.parameters():
            p.grad = None
    if TORCH < (2, 13):  # whose gradients of a scan are wrong
        del gradients[-1]
    for each in gradients[1:]:
        torch.testing.assert_close(each, gradients[0])


# --------------------------------------------------------------------------------- what is refused


def write_what_is_appended(x: Tensor) -> Tensor:
    found, h = [], torch.zeros(2, 3)
    for t in range(x.shape[0]):
        h += x[t]
        found.append(h)
    return torch.stack(found)


def write_a_part_of_what_is_appended(x: Tensor) -> Tensor:
    found, place = [], torch.zeros(4, 2, 3)
    for t in range(x.shape[0]):
        place[0] = x[t]
        found.append(place[0])
    return torch.stack(found)


def write_afterwards(x: Tensor) -> Tensor:
    found, h = [], torch.zeros(2, 3)
    for t in range(x.shape[0]):
        h = h + x[t]
        found.append(h)
    h.zero_()
    return torch.stack(found)


def write_to_an_element(x: Tensor) -> Any:
    found, h = [], torch.zeros(2, 3)
    for t in range(x.shape[0]):
        h = h + x[t]
        found.append(h)
    found[-1].zero_()
    return torch.stack(found), h


def return_it(x: Tensor) -> Any:
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
    return {"found": (x, found)}


def pop_it(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
    found.pop(1)
    return torch.stack(found)


def compare_it(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
    return x if found == [] else x + 1


def extend_another(x: Tensor) -> Tensor:
    found, kept = [], [torch.ones(2, 3)]
    other = kept
    for t in range(x.shape[0]):
        found.append(x[t])
    kept += found
    return torch.stack(other)


def another_function(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
    return torch.hstack(found)


def keep_it_elsewhere(x: Tensor) -> Tensor:
    KEPT.clear()
    for t in range(x.shape[0]):
        KEPT.append(x[t])
    return torch.stack(KEPT)


KEPT: list[Tensor] = []


def read_what_lies_otherwise(x: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        found.append((x[t] + 1).t())
    return found[-1]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (write_what_is_appended, "a tensor is appended to found that the loop writes to"),
        (write_a_part_of_what_is_appended, "a tensor is appended to found that the loop writes"),
        (write_afterwards, "a tensor is written to, and the body of"),
        (write_to_an_element, "a tensor is written to, and the body of"),
        (return_it, "the module returns a list to which a loop appends"),
        (pop_it, "another element than the first or last is taken out of a list to which"),
        (compare_it, "list.__eq__ is called on a list to which a loop has appended"),
        (extend_another, "a list is joined with one to which a loop has appended"),
        (another_function, "hstack is given a list to which a loop has appended"),
        (keep_it_elsewhere, "is not made as [] in a function that runs"),
        (read_what_lies_otherwise, "the loop appends tensors that are not contiguous"),
    ],
)
def test_what_no_program_can_do_is_refused_with_its_line(function: Function, text: str) -> None:
    with pytest.raises((CaptureError, ConstraintViolationError)) as error:
        export_rows(function)
    told = "\n".join([str(error.value), *getattr(error.value, "__notes__", [])])
    assert text in told
    assert f"in {function.__name__}" in told
    assert "instead: " in told


def test_what_the_body_needs_of_sizes_is_no_surprise() -> None:
    def list_inside(x: Tensor) -> Tensor:
        found = []
        for t in range(x.shape[0]):
            found.append(x[t] * len([None] * x.shape[0]))
        return torch.stack(found)

    with pytest.raises(ConstraintViolationError, match=r"x.shape\[0\] == 5"):
        export_rows(list_inside)
