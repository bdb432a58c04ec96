"""`lostwax.capture`: programs as calls need them, on the module's own state."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import lostwax
from tests.fresh import run_python


class Counting(nn.Module):
    """Writes to buffers, branches on a size, takes an int."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, k=1):
        self.calls = self.calls + 1
        y = self.norm(self.linear(x)) * k
        return y + 1 if x.shape[0] > 5 else y


@pytest.fixture
def pair() -> tuple[Counting, Counting]:
    torch.manual_seed(0)
    ours, eager = Counting(), Counting()
    eager.load_state_dict(ours.state_dict())
    return ours, eager


def test_calls_give_what_the_module_gives_and_change_its_state(pair) -> None:
    ours, eager = pair
    captured = lostwax.capture(ours)
    for rows, k in ((4, 1), (4, 1), (3, 1), (5, 1), (9, 1), (2, 3), (2, 4), (12, 7)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(captured(x, k), eager(x, k))
    torch.testing.assert_close(ours.state_dict(), eager.state_dict())
    assert [v.calls for v in captured.variants] == [2, 2, 1, 2, 1]
    assert [v.varying for v in captured.variants[1:4]] == [
        ("x.shape[0]",), ("x.shape[0]",), ("x.shape[0]", "k"),
    ]  # fmt: skip
    assert captured.programs[0].range_constraints == {}


def test_what_is_switched_or_replaced_is_captured_again(pair) -> None:
    ours, eager = pair
    captured = lostwax.capture(ours)
    x = torch.randn(4, 3)
    for change in (lambda m: m, nn.Module.eval, nn.Module.double):
        change(ours), change(eager)
        x = x.to(ours.linear.weight.dtype)
        torch.testing.assert_close(captured(x), eager(x))
    assert len(captured.programs) == 3
    text = captured.explain()
    assert "self.training was True, is False" in text
    assert "self.norm.weight has another dtype or size now" in text
    ours.float(), eager.float()
    torch.testing.assert_close(captured(x.float()), eager(x.float()))
    assert len(captured.programs) == 3


def test_weights_that_change_are_seen(pair) -> None:
    ours, eager = pair
    captured, x = lostwax.capture(ours.eval()), torch.randn(4, 3)
    captured(x)
    with torch.no_grad():
        ours.linear.weight.add_(1)
        eager.linear.weight.add_(1)
    torch.testing.assert_close(captured(x), eager.eval()(x))
    captured(x).sum().backward()
    eager(x).sum().backward()
    torch.testing.assert_close(ours.linear.weight.grad, eager.linear.weight.grad)
    assert len(captured.programs) == 1


def double(x):
    return x * 2


def test_one_program_for_each_size() -> None:
    captured = lostwax.capture(double, dynamic=False)
    for n in (3, 4, 5, 4):
        assert captured(torch.ones(n)).shape == (n,)
    assert len(captured.programs) == 3


def test_all_dynamic_from_the_start() -> None:
    captured = lostwax.capture(double, dynamic=True)
    for n in (1, 0, 5):
        assert captured(torch.ones(n, 2)).shape == (n, 2)
    assert len(captured.programs) == 1


def test_marks_count() -> None:
    captured, x = lostwax.capture(double), torch.ones(3)
    lostwax.mark_dynamic(x, 0)
    captured(x)
    assert captured(torch.ones(9)).shape == (9,)
    assert len(captured.programs) == 1


def test_the_program_of_the_seeds() -> None:
    def f(x, y):
        z = torch.cat([x, y])
        return z.mul(2) if z.size(0) > 2 else z.add(2)

    captured = lostwax.capture(f, dynamic=True)
    for n, m in ((1, 1), (0, 2), (2, 1), (5, 5)):
        x, y = torch.randn(n), torch.randn(m)
        torch.testing.assert_close(captured(x, y), f(x, y))
    (small,), (large,) = (p.guards for p in captured.programs)
    assert small.predicate == "x.shape[0] + y.shape[0] <= 2"
    assert large.predicate == "x.shape[0] + y.shape[0] >= 3"
    assert "captured under the condition x.shape[0] + y.shape[0] <= 2" in captured.explain()


def test_decisions_are_told(caplog) -> None:
    with caplog.at_level(logging.INFO, "lostwax.dynamic"):
        lostwax.capture(lambda x: x + 1 if x.shape[0] > 5 else x, dynamic=True)(torch.ones(9))
    told = "\n".join(caplog.messages)
    assert "s0 is x.shape[0], example 9, range 0 to None" in told
    assert "guard x.shape[0] >= 6  # branch: the trace follows the example (x.shape[0] = 9)" in told
    assert "test_adaptive.py" in told


def test_logs_by_environment() -> None:
    code = "import torch, lostwax; lostwax.capture(lambda x: x, dynamic=True)(torch.ones(2))"
    run = run_python(code, LOSTWAX_LOGS="dynamic,static")
    assert "lostwax dynamic: s0 is x.shape[0], example 2" in run.stderr
    assert "LOSTWAX_LOGS: no topic 'static'" in run.stderr


class Viewing(nn.Module):
    """Keeps views of its state beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buf", torch.zeros(4))
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.half = self.buf[:2]
        self.views = {"w": self.weight.detach().view(-1), "row": self.weight.data[0]}

    def forward(self, x):
        return x + self.half.sum(), self.buf * 2, self.views["w"] + self.views["row"].sum()


def rebind_buffer(m: Viewing) -> None:
    m.buf = m.buf + 1


def give_data(m: Viewing) -> None:
    m.weight.data = m.weight.data * 3


def give_transposed_data(m: Viewing) -> None:
    m.weight.data = m.weight.data.t()


def give_data_to_view(m: Viewing) -> None:
    m.half.data = m.half.data + 5


def give_state_the_memory_of_a_view(m: Viewing) -> None:
    m.buf.data = m.views["w"].data


def write(m: Viewing) -> None:
    with torch.no_grad():
        m.weight.add_(1)
        m.buf.add_(1)


CHANGES = (
    rebind_buffer, give_data, give_transposed_data, give_data_to_view,
    give_state_the_memory_of_a_view, nn.Module.half,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_views_of_state_that_was_replaced_show_what_they_showed(change) -> None:
    ours, eager, x = Viewing(), Viewing(), torch.ones(2)
    captured = lostwax.capture(ours)
    for step in (write, change, write, write):
        torch.testing.assert_close(captured(x), eager(x))
        step(ours), step(eager)
        torch.testing.assert_close(captured(x), eager(x))


def test_replaced_state_is_told_of() -> None:
    module = Viewing()
    captured = lostwax.capture(module)
    captured(torch.ones(2))
    rebind_buffer(module)
    captured(torch.ones(2))
    assert "share with parameters and buffers is other memory now" in captured.explain()


class Keeping(nn.Module):
    """Its Python keeps what no program keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.seen, self.rows = 0, [], None
        self.register_buffer("total", torch.zeros(()))
        self.held = [torch.ones(2), torch.full((2,), 3.0)]

    def forward(self, x, how, into):
        self.total += 1
        if how == "counts":
            self.count += 1
            return x * self.count
        if how == "appends":
            self.seen.append(len(self.seen))
            return x * len(self.seen)
        if how == "repeats":
            self.held.append(self.held[0])
            return x * len(self.held)
        if how == "rotates":
            self.held.reverse()
            return x * self.held[0]
        if how == "fills":
            into.append(x * 2)
            return x + len(into)
        self.rows = x.shape[0]  # the same in each call
        return x * self.rows


@pytest.mark.parametrize("how", ["counts", "appends", "fills", "repeats", "rotates"])
def test_what_no_program_keeps_runs_the_module_itself(how, recwarn) -> None:
    ours, eager, x = Keeping(), Keeping(), torch.ones(2)
    captured = lostwax.capture(ours)
    for _ in range(5):
        mine, its = [], []
        torch.testing.assert_close(captured(x, how, mine), eager(x, how, its))
        torch.testing.assert_close(mine, its)
    assert (ours.count, ours.seen, ours.total) == (eager.count, eager.seen, eager.total)
    assert captured.programs == []
    assert len(captured.eager) == 3
    text = captured.explain()
    assert "0 programs\nthe module itself runs\n  in the call at " in text
    assert "in the call at tests/capture/test_adaptive.py:" in text
    assert text.endswith(", and those after it that no program holds for")
    # What the collector finds unclosed of other tests is not ours.
    assert not [each for each in recwarn if not issubclass(each.category, ResourceWarning)]


def test_what_is_set_once_is_captured_by_the_next_call() -> None:
    ours, eager = Keeping(), Keeping()
    captured = lostwax.capture(ours)
    for rows in (2, 2, 2, 3, 3, 5, 2, 5):
        x = torch.ones(rows)
        torch.testing.assert_close(captured(x, "sets", []), eager(x, "sets", []))
        assert (ours.rows, ours.total) == (eager.rows, eager.total)
    assert captured.programs
    assert "sets its attribute rows, which was None, to 2" in captured.eager[0]


class Leaving(nn.Module):
    """Leaves tensors in its attributes, which it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.last, self.held = torch.zeros(2, 3), [torch.zeros(3)]
        self.part = self.held[0][:2]

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        y = self.linear(x)
        if what == "results":
            self.last = y.detach()
        elif what == "inputs":
            self.last = x
        elif what == "weights":
            self.last = self.linear.weight
        elif what == "weights in a list":
            self.held[0] = self.linear.weight
        elif what == "parts":
            self.part = torch.ones(2)
            return y + self.held[0]
        elif what == "new buffers" and not hasattr(self, "made"):
            self.register_buffer("made", torch.arange(3.0))
        return y * 2


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("results", "puts another tensor into its attribute last"),
        ("inputs", "puts another tensor into its attribute last"),
        ("weights", "registers last"),  # so torch takes it
        ("weights in a list", "puts another tensor into its attribute held[0]"),
        ("parts", "puts another tensor into its attribute part"),
        ("new buffers", "registers made"),
    ],
)
def test_what_a_call_leaves_in_attributes_is_found_there(what: str, why: str) -> None:
    torch.manual_seed(0)
    ours, eager = Leaving(), Leaving()
    eager.load_state_dict(ours.state_dict())
    captured = lostwax.capture(ours)
    for i in range(5):
        x = torch.full((2, 3), float(i))
        torch.testing.assert_close(captured(x, what), eager(x, what))
        torch.testing.assert_close(
            (ours.last, ours.held, ours.part), (eager.last, eager.held, eager.part)
        )
        assert (ours.last is x) is (eager.last is x)
        torch.testing.assert_close(ours.state_dict(), eager.state_dict())
    assert (ours.last is ours.linear.weight) is (what == "weights")
    assert (ours.held[0] is ours.linear.weight) is (what == "weights in a list")
    assert why in captured.eager[0]
    assert len(captured.programs) == (what not in ("results", "inputs", "parts"))


STEPS = iter([1])


class Stepping(nn.Module):
    """Asks for data, which cannot be captured, and might read what we cannot compare: so it runs
    before it is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        factor = self.next_step() if len(x) > 2 else 2
        return x * factor if x.numpy().sum() > 0 else x

    def next_step(self) -> int:
        return next(STEPS)


def test_a_result_is_not_lost_where_the_capture_fails() -> None:
    module = Stepping()
    captured = lostwax.capture(module)
    with pytest.warns(UserWarning, match="a call cannot be captured") as told:
        results = [captured(torch.ones(2)) for _ in range(4)]
    torch.testing.assert_close(results, [torch.full((2,), 2.0)] * 4)
    assert module.calls == 4
    assert "if x.numpy().sum() > 0" in str(told[0].message)
    assert len(captured.eager) == 3


class Doubling(nn.Module):
    """Writes to a buffer of which it holds a view, and replaces it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.ones(2, 3))
        self.first = self.rows[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.mul_(2)
        self.rows = self.rows + 1
        return x * 2


def test_a_view_of_what_is_written_and_then_replaced_shows_the_write() -> None:
    ours, eager = Doubling(), Doubling()
    captured = lostwax.capture(ours)
    for _ in range(2):
        torch.testing.assert_close(captured(torch.ones(1)), eager(torch.ones(1)))
        torch.testing.assert_close((ours.first, ours.rows), (eager.first, eager.rows))
    assert "the buffer rows is written in place, and then replaced" in captured.eager[0]


def test_a_lazy_module_is_captured_when_it_has_run() -> None:
    module = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyBatchNorm1d())
    captured = lostwax.capture(module)
    results = [captured(torch.ones(2, 4)) for _ in range(3)]
    assert len(captured.programs) == 1
    assert module[2].num_batches_tracked == 3
    torch.testing.assert_close(results, [torch.zeros(2, 3)] * 3)


class Handing(nn.Module):
    """Its results are tensors that it holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 3))
        self.first = self.rows[0]
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x: torch.Tensor, replace: bool) -> torch.Tensor:
        self.rows.add_(x)
        if not replace:
            return self.first
        self.state = self.state.view(3)
        return self.state


@pytest.mark.parametrize("replace", [False, True])
def test_a_result_that_the_module_holds_is_that_very_tensor(replace: bool) -> None:
    results = []
    for way in (lambda module: module, lostwax.capture):
        net = Handing()
        call = way(net)
        kept = [call(torch.ones(3), replace) for _ in range(2)]
        held = net.state if replace else net.first
        assert kept[-1] is held
        held.data = torch.full((3,), 7.0)
        call(torch.ones(3), replace)
        results.append([t.clone() for t in kept])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("empty", [(2, 3, 0), (0, 3, 4)])
def test_batch_norm_of_nothing_in_training(empty: tuple[int, ...]) -> None:
    ours, eager = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    captured = lostwax.capture(ours)
    for size in ((2, 3, 5), (3, 3, 6), empty, (4, 3, 2), empty):
        x = torch.linspace(-1, 1, 3 * size[0] * size[2]).view(size)
        torch.testing.assert_close(captured(x), eager(x))
        torch.testing.assert_close(ours.state_dict(), eager.state_dict())
