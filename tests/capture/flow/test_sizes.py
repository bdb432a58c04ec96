"""`control_flow="sizes"`: Python's branches on declared sizes keep both ways, against eager."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lostwax
from lostwax import Dim
from lostwax.errors import ConstraintViolationError, DataDependentError
from tests.capture.flow.sizes import PROGRAMS
from tests.fresh import run_python


def by_length(x: Tensor) -> Tensor:
    if x.shape[0] > 4:
        return x * 2
    return x + 100


def by_remainder(x: Tensor) -> Tensor:
    n = x.shape[0]
    y = x.sum() if n % 2 == 0 else x.mean()
    return y + (1 if 2 < n < 6 else 0)


def a_truth_for_an_operator(x: Tensor) -> Tensor:
    causal = x.shape[0] > 1 and x.ndim == 1
    q = x[None, None, :, None].expand(1, 1, -1, 4)
    return F.scaled_dot_product_attention(q, q, q, is_causal=causal)


def over_the_length(x: Tensor) -> Tensor:
    h = torch.zeros(())
    for i in range(x.shape[0]):
        h = torch.tanh(h + x[i])
    return h


def a_share(x: Tensor) -> Tensor:
    k = int(x.shape[0] * 0.7)
    return x[: max(1, k)].sum() + (1 if x.shape[0] / 2 == k else 0)


def by_root(x: Tensor) -> Tensor:
    n = x.shape[0]
    if n > 3 and math.sqrt(n - 3) > 1.5:
        return x * math.sqrt(n - 4) * (n - 4) ** 0.5
    return x


def on_both(x: Tensor) -> Tensor:
    if x.shape[0] > 2 and x.sum() > 5:
        return x + 1
    return x - 1


def over_parts(x: Tensor) -> Any:
    total = torch.zeros(())
    for i, part in enumerate(x.split(2)):
        total = total * 2 + part.sum() * part.shape[0] + i
    for part in torch.chunk(x[None], 3, dim=1):
        total = total * 3 + part.sum()
    for word in ["a", "b"]:
        total = total + len(word)
    return total, torch.stack([part.max() for part in torch.split(x, split_size_or_sections=3)])


def by_key(x: Tensor) -> Any:
    n = x.shape[0]
    y = {1: torch.relu, 4: lambda x: x + 5}.get(n, torch.tanh)(x)
    return y * {2: 3.0}.get(n, 1.0), 7 if n in {1, 3} else 2, y if n in (2, 4) else -y


def a_view_in_both_ways(x: Tensor) -> Any:
    y = torch.stack([x, x * 2], 1)
    if x.shape[0] == 1:
        return y.t()[:, 0].sum() * 1.0
    return y.t().sum() * y.t().shape[1]


def add_up(y: Tensor) -> Tensor:
    total = torch.zeros(2)
    for i in range(y.shape[1]):
        total = total * 0.5 + y[:, i]
    return total


def a_loop_over_it_in_both_ways(x: Tensor) -> Any:
    y = torch.stack([x, x * 2], 1)
    return add_up(y.t()) * 2 if x.shape[0] == 1 else add_up(y.t())


def by_a_range(x: Tensor) -> Any:
    n = x.shape[0]
    y = x[:, None] + torch.zeros(n, n)
    y[range(n), torch.arange(n) // 2] = 7
    y[range(0, n, 2)] += 1
    return y, y[range(n - 1, -1, -1)], y[:, range(1, n)], y[range(n), None]


@pytest.mark.parametrize("example", [5, 1])
@pytest.mark.parametrize(
    "function",
    [
        *(by_length, by_remainder, a_truth_for_an_operator, over_the_length, on_both, over_parts),
        *(by_key, by_a_range),
        *(a_share, by_root, a_view_in_both_ways, a_loop_over_it_in_both_ways),
    ],
)
def test_one_program_serves_all_sizes(function: Any, example: int) -> None:
    sizes = ({0: Dim("n", min=1, max=1000)},)
    program = lostwax.export(
        function, (torch.arange(example * 1.0),), dynamic_shapes=sizes, control_flow="sizes"
    )
    run = program.module()
    for n in range(1, 9):
        x = torch.arange(n * 1.0)
        torch.testing.assert_close(run(x), function(x))


def in_blocks(x: Tensor) -> Tensor:
    n = x.shape[0]
    pad = (4 - n % 4) % 4
    y = F.pad(x, (0, pad)).view(-1, 4).cumsum(1).view(-1)
    if pad > 0:
        y = y[:n]
    return y


def at_most_four(x: Tensor) -> Tensor:
    return x[:4] if x.shape[0] > 3 else x * 2


@pytest.mark.parametrize("example", [5, 8])
def test_a_size_that_is_right_on_both_sides_is_the_size_afterwards(example: int) -> None:
    sizes = ({0: Dim("n", min=1)},)
    program = lostwax.export(
        in_blocks, (torch.ones(example),), dynamic_shapes=sizes, control_flow="sizes"
    )
    given, out = program.graph.find_nodes(op="placeholder")[-1], program.graph.output_node()
    assert out.args[0][0].meta["val"].shape == given.meta["val"].shape  # type: ignore[union-attr, index]
    for n in (1, 4, 7, 8, 13):
        x = torch.randn(n)
        torch.testing.assert_close(program.module()(x), in_blocks(x))
    for n in (1, 3, 4, 5, 9):
        program = lostwax.export(
            at_most_four, (torch.ones(example),), dynamic_shapes=sizes, control_flow="sizes"
        )
        x = torch.randn(n)
        torch.testing.assert_close(program.module()(x), at_most_four(x))


def test_without_it_the_example_decides() -> None:
    with pytest.raises(ConstraintViolationError, match=r"x.shape\[0\] >= 5"):
        lostwax.export(by_length, (torch.ones(5),), dynamic_shapes=({0: Dim("n")},))


def test_what_cannot_be_kept_is_decided_by_the_example() -> None:
    def as_list(x: Tensor) -> Tensor:
        return x + len([None] * x.shape[0])

    sizes = ({0: Dim("n")},)
    with pytest.raises(ConstraintViolationError, match="declare n = 5"):
        lostwax.export(as_list, (torch.ones(5),), dynamic_shapes=sizes, control_flow="sizes")


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match='takes "capture", "sizes" or "refuse", not \'size\''):
        lostwax.export(by_length, (torch.ones(5),), control_flow="size")  # type: ignore[arg-type]


DECODERS = """
import torch, lostwax
from lostwax import Dim
from sweep.libraries import load_transformers

t = load_transformers()
small = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=64, use_cache=False)
models = [
    t.LlamaForCausalLM(t.LlamaConfig(**small)),
    t.GPT2LMHeadModel(t.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, use_cache=False)),
    t.GemmaForCausalLM(t.GemmaConfig(**small, head_dim=8)),
]
sizes = {0: Dim("batch", min=1, max=8), 1: Dim("seq", min=1, max=64)}
for model in models:
    ids = torch.arange(14).reshape(2, 7)
    program = lostwax.export(
        model.eval(), (ids,), dynamic_shapes=(sizes,), control_flow="sizes"
    )
    run = program.module()
    for batch, length in ((1, 1), (2, 1), (1, 2), (3, 7), (2, 30)):
        ids = torch.randint(0, 64, (batch, length))
        torch.testing.assert_close(run(ids).logits, model(ids).logits)
"""


def test_decoders_of_any_length() -> None:
    pytest.importorskip("transformers")
    run_python(DECODERS, ignore_warnings=True)


def test_a_side_raises_by_a_size_that_the_example_has_not() -> None:
    def forward(x: Tensor) -> Tensor:
        n = x.shape[0]
        if n > 1:
            return x.sum() + 1
        if n != 0:
            raise ValueError("one is none")
        return x.sum() * 3

    run = lostwax.export(
        forward, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=0)},), control_flow="sizes"
    ).module()
    for n in (0, 2, 5):
        torch.testing.assert_close(run(torch.ones(n)), forward(torch.ones(n)))
    with pytest.raises(RuntimeError, match="one is none"):
        run(torch.ones(1))


@pytest.mark.parametrize("count", [lambda x: x.numel(), lambda x: x.nelement(), torch.numel])
def test_what_a_branch_knows_of_sizes_is_not_known_after_it(count: Any) -> None:
    def forward(x: Tensor) -> Any:
        n, m = x.shape
        k = n if min(n, m) > 1 else count(x)  # where m is 1
        return (x[0] if count(x) > 6 else x[0] * 2), k

    sizes = ({0: Dim("n", min=2), 1: Dim("m", min=1)},)
    run = lostwax.export(
        forward, (torch.ones(4, 3),), dynamic_shapes=sizes, control_flow="sizes"
    ).module()
    for n, m in ((2, 1), (4, 1), (2, 3), (3, 3), (5, 2), (9, 1)):
        torch.testing.assert_close(run(torch.ones(n, m)), forward(torch.ones(n, m)))


def check_all_sizes(function: Any) -> None:
    """Where eager raises, the program does; else both give the same."""
    sizes = ({0: Dim("n", min=0)},)
    run = lostwax.export(
        function, (torch.ones(4, 3),), dynamic_shapes=sizes, control_flow="sizes"
    ).module()
    for n in range(7):
        x = torch.arange(n * 3.0).view(n, 3) + 1
        try:
            wanted = function(x)
        except Exception:
            with pytest.raises((RuntimeError, ValueError)):
                run(x)
        else:
            torch.testing.assert_close(run(x), wanted)


@pytest.mark.parametrize("function", PROGRAMS)
def test_the_example_says_nothing_of_a_side_that_it_does_not_take(function: Any) -> None:
    check_all_sizes(function)


def test_a_number_that_a_side_needs_and_the_example_does_not_tell() -> None:
    def unpacked(x: Tensor) -> Tensor:
        if x.shape[0] <= 3:
            one, *_ = x.unbind(0)
            return one.sum()
        return x.sum()

    sizes = ({0: Dim("n", min=1)},)
    with pytest.raises(ConstraintViolationError, match=r"x.shape\[0\] >= 4"):
        lostwax.export(unpacked, (torch.ones(4, 3),), dynamic_shapes=sizes, control_flow="sizes")


def test_a_number_that_becomes_a_tensor_in_a_loop_that_may_not_run() -> None:
    def added(x: Tensor) -> Any:
        s = 0
        for i in range(x.shape[0]):
            s = s + x[i]
        return s  # the number 0, if there are none

    with pytest.raises(ConstraintViolationError, match="min=1"):
        lostwax.export(
            added, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=0)},), control_flow="sizes"
        )
    run = lostwax.export(
        added, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=1)},), control_flow="sizes"
    ).module()
    assert [run(torch.ones(n)).item() for n in (1, 2, 7)] == [1, 2, 7]


def test_a_loop_that_appends_and_does_not_run_in_the_example() -> None:
    def doubled(x: Tensor) -> Any:
        return sum([x[i] * 2 for i in range(x.shape[0])])

    sizes = ({0: Dim("n", min=0)},)
    program = lostwax.export(
        doubled, (torch.ones(0),), dynamic_shapes=sizes, control_flow="sizes"
    ).module()
    for n in (0, 1, 4):
        got, want = program(torch.ones(n)), doubled(torch.ones(n))
        assert type(got) is type(want)
        assert got == want


def test_a_variable_that_a_loop_sets_which_the_example_does_not_run() -> None:
    def last(x: Tensor) -> Any:
        for i in range(1, x.shape[0]):
            x = x + i
        return x, i if x.shape[0] > 1 else 0

    sizes = ({0: Dim("n")},)
    with pytest.raises(ConstraintViolationError, match="declare n = 1"):
        lostwax.export(last, (torch.ones(1),), dynamic_shapes=sizes, control_flow="sizes")


def rows_that_data_choose(x: Tensor) -> Tensor:
    y = x[x > 0][:, None] * 2
    if y.shape[0] == 1:
        return y.t()[:, 0].sum() * 1.0
    return y.t().sum() * y.t().shape[1]


def a_number_of_data(x: Tensor) -> Tensor:
    n = int((x > 0).sum())
    y = torch.stack([x, x * 3])[:, :n]
    if n == 2:
        r = y.transpose(0, 1).sum()
    else:
        r = y.transpose(0, 1).sum() * y.transpose(0, 1).size(0)
    return r + torch.cat([y.transpose(0, 1), torch.zeros(1, 2)]).shape[0]


@pytest.mark.parametrize("function", [rows_that_data_choose, a_number_of_data])
@pytest.mark.parametrize("example", [1, 2, 3])
def test_a_size_that_is_a_number_in_one_branch_is_none_in_the_other(
    function: Any, example: int
) -> None:
    """C++ keeps a size that is constant as a number: what a branch made is not used by others."""
    inputs = {
        n: torch.tensor([float(i) if i <= n else -1.0 for i in range(1, 6)]) for n in range(6)
    }
    run = lostwax.export(function, (inputs[example],)).module()
    for x in inputs.values():
        torch.testing.assert_close(run(x), function(x))


TABLE = torch.arange(20.0).view(4, 5)


def pieces_of_four(x: Tensor) -> Any:
    if x.shape[0] == 4:
        first, second = x.split(2)
        return first.sum() * len(x.split(2)) - second.sum()
    return x.sum()


def halves_of_two(x: Tensor) -> Any:
    if x.shape[0] == 2:
        first, second = x.chunk(2)
        return first.sum() * 10 + second.sum() + len(x.chunk(2))
    return x.sum() * 3


def halves_of_more(x: Tensor) -> Any:
    if x.shape[0] >= 2:
        first, second = x.chunk(2)
        return first.sum() * 10 + second.sum()
    return x.sum() * 3


def strides_of_copies(x: Tensor) -> Any:
    y = (TABLE * 1)[:, : x.shape[0]]
    if x.shape[0] == 5:
        k = (y * 2).stride(0) + y.clone().stride(0)
    elif x.shape[0] > 1:
        k = (y * 2).stride(0) * 10 + torch.zeros_like(y).stride(0)
    else:
        k = 0
    return x.sum() + k


def rows_in_a_copy(x: Tensor) -> Any:
    n, y = x.shape[0], (TABLE * 1)[:, : x.shape[0]]
    if n == 5:
        return y.contiguous().as_strided((4,), (n,)).sum()
    return y.contiguous().as_strided((4,), (n,)).sum() if n > 0 else x.sum()


def flat_copies(x: Tensor) -> Any:
    y = torch.stack([x, x * 2], 1).t()
    if x.shape[0] == 1:
        r = y.contiguous().sum() + y.ravel().sum()
    else:
        r = y.contiguous().view(-1)[1:].sum() + y.ravel()[1:].sum()
    return r, y.contiguous().view(-1), y.ravel()


def laid_out_alike_in_a_branch_alone(x: Tensor) -> Any:
    n, y = x.shape[0], torch.arange(24.0).view(2, 3, 4)
    if n == 3:
        y = torch.ones(2, n, 4)
    elif n < 3:
        y = y[:, :n]
    return y.reshape(-1) * 2, y.contiguous().view(-1)


PINNED = [
    *(pieces_of_four, halves_of_two, halves_of_more, strides_of_copies, rows_in_a_copy),
    *(flat_copies, laid_out_alike_in_a_branch_alone),
]


@pytest.mark.parametrize("function", PINNED)
@pytest.mark.parametrize("example", [1, 3, 5])
@pytest.mark.parametrize("by_data", [False, True])
def test_what_is_known_in_a_branch_is_known_there_alone(
    function: Any, example: int, by_data: bool
) -> None:
    """And in one that the example does not take, its numbers say nothing."""
    inputs = [torch.arange(1.0, n + 1) for n in range(6)]
    if by_data:
        inputs = [F.pad(x, (0, 6 - len(x)), value=-1.0) for x in inputs]
        program = lostwax.export(lambda x: function(x[x > 0]), (inputs[example],))
    else:
        sizes = ({0: Dim("n", min=0)},)
        program = lostwax.export(
            function, (inputs[example],), dynamic_shapes=sizes, control_flow="sizes"
        )
    for x in inputs:
        torch.testing.assert_close(program.module()(x), function(x[x > 0]))


def written_copy(x: Tensor) -> Any:
    y = (TABLE * 1)[:, : x.shape[0]]
    if x.shape[0] == 5:
        return y.contiguous().sum()
    y.contiguous().add_(1)
    return y.sum()


def asked_for_its_layout(x: Tensor) -> Any:
    y = torch.stack([x, x * 2], 1).t()
    if x.shape[0] == 1:
        return x.sum() + (1 if y.is_contiguous() else 2)
    return x.sum() + (3 if y.is_contiguous() else 4)


def asked_after_a_flat_copy(x: Tensor) -> Any:
    y = (TABLE * 1)[:, : x.shape[0]]
    r = y.ravel().sum() if x.shape[0] == 5 else y.sum()
    return r + (100 if y.is_contiguous() else 0)


@pytest.mark.parametrize(
    ("function", "asked"),
    [
        (written_copy, r"min\(5, u0\) == 1"),
        (asked_for_its_layout, "u0 == 0"),
        (asked_after_a_flat_copy, "u0 >= 5"),
    ],
)
def test_a_layout_that_is_known_in_one_branch_is_asked_for_in_the_other(
    function: Any, asked: str
) -> None:
    """C++ keeps what it has found out of a tensor: where a branch ends, it forgets that."""
    with pytest.raises(DataDependentError, match=rf"cannot decide `.*{asked}"):
        lostwax.export(lambda x: function(x[x > 0]), (torch.ones(6),))
