"""What is done with lists to which a loop has appended."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program


@program(ints(1, 1, 0, 2, 2), ints(0, 0, 0, 0, 1), ints(1, 2, 1, 2, 1))
def ctc_collapse(best: Tensor) -> Tensor:
    collapsed, previous = [], -1
    for symbol in best.tolist():
        if symbol != previous:
            collapsed.append(symbol)
        previous = symbol
    return torch.tensor([symbol for symbol in collapsed if symbol != 0])


@program(ints(1, 1, 2, 2, 2), ints(1, 1, 1, 1, 1), ints(1, 2, 1, 2, 1))
def run_lengths(ids: Tensor) -> tuple[Tensor, Tensor]:
    values, counts = [ids[0]], [1]
    for each in ids[1:]:
        if each == values[-1]:
            counts[-1] += 1
        else:
            values.append(each)
            counts.append(1)
    return torch.stack(values), torch.tensor(counts)


@program(floats(9, 3), floats(0.1, 0.1), floats(100, 1))
def mean_of_a_trajectory(x: Tensor) -> Tensor:
    outs = [x]
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    return sum(outs) / len(outs)


@program(draw(5), -torch.ones(5), torch.ones(5))
def largest_or_default(x: Tensor) -> Tensor:
    found = []
    for each in x:
        if each > 0:
            found.append(each)
    return max(found, default=torch.tensor(-1.0))


@program(draw(5), -torch.ones(5), torch.ones(5))
def mean_or_zero(x: Tensor) -> Tensor:
    found = [each for each in x if each > 0]
    if not found:
        return torch.zeros(())
    return sum(found) / len(found)


@program(draw(5), -torch.ones(5), torch.ones(5))
def filtered_twice(x: Tensor) -> Tensor:
    positive = [each for each in x if each > 0]
    small = [each for each in positive if each < 1]
    return torch.stack(small).sum() if small else torch.zeros(())


@program(floats(9, 3), floats(2, 2), floats(100, 1))
def parts_of_a_trajectory(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    outs = [x]
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    return outs[0] + outs[-1], outs[len(outs) // 2], torch.stack(outs[1:]).sum(dim=0)


@program(floats(9, 3), floats(0.5, 0.2), floats(100, 1))
def until_losses_stop_falling(x: Tensor) -> tuple[Tensor, int]:
    losses = [(x - 1).square().sum()]
    while True:
        x = x - 0.8 * (x - 1)
        losses.append((x - 1).square().sum())
        if losses[-2] - losses[-1] < 1e-2:
            break
    return x, len(losses)


@program(floats(9, 3), floats(0.1, 0.1), floats(100, 1))
def differences_of_a_trajectory(x: Tensor) -> Tensor:
    norms = [x.norm()]
    while norms[-1] > 1:
        x = x / 2
        norms.append(x.norm())
    total = torch.zeros(())
    for one, other in zip(norms, norms[1:]):  # noqa: RUF007
        total = total + (one - other).abs()
    return total


@program(floats(9, 3), floats(0.1, 0.1), floats(100, 1))
def weighted_by_age(x: Tensor) -> Tensor:
    outs = []
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    total = torch.zeros(2)
    for age, out in enumerate(reversed(outs)):
        total = total + out * 0.5**age
    return total


@program(draw(5), draw(5, seed=2), torch.ones(5), -torch.ones(5))
def best_of_accepted(x: Tensor) -> tuple[Tensor, int]:
    accepted = []
    for i, each in enumerate(x):
        if each > 0:
            accepted.append((each, i))
    if not accepted:
        return torch.tensor(-1.0), -1
    score, at = max(accepted, key=lambda pair: pair[0])
    return score, at


@program(draw(5), -torch.ones(5), torch.ones(5))
def two_lists(x: Tensor) -> tuple[Tensor, Tensor]:
    positive, negative = [], []
    for each in x:
        (positive if each > 0 else negative).append(each)
    return sum(positive, torch.zeros(())), sum(negative, torch.zeros(()))


@program(draw(5), -torch.ones(5), torch.ones(5))
def grouped_in_a_dict(x: Tensor) -> Tensor:
    groups: dict[str, list[Tensor]] = {"positive": [], "negative": []}
    for each in x:
        if each > 0:
            groups["positive"].append(each)
        else:
            groups["negative"].append(each)
    return torch.tensor([len(groups["positive"]), len(groups["negative"])])


@program(draw(4), -torch.ones(4), torch.ones(4))
def extend_and_add(x: Tensor) -> Tensor:
    out = [torch.zeros(())]
    for each in x:
        if each > 0:
            out += [each, each * 2]
        else:
            out.extend([each])
    return torch.stack(out)


@program(floats(9, 3), floats(0.1, 0.1), floats(100, 1))
def last_three_of_a_deque(x: Tensor) -> Tensor:
    recent = deque([x, x, x], maxlen=3)
    while x.norm() > 1:
        x = x / 2
        recent.append(x)
    return torch.stack(list(recent)).mean(dim=0)


@program(
    (ints(2, 3, 1, 0), number(0)), (ints(0, 0, 0, 0), number(3)), (ints(1, 2, 3, 0), number(1))
)
def until_a_word_repeats(table: Tensor, start: Tensor) -> Tensor:
    out = [start.item()]
    for _ in range(6):
        token = table[out[-1]].item()
        if token in out:
            break
        out.append(token)
    return torch.tensor(out)


@program(draw(5), -torch.ones(5), torch.ones(5))
def median_of_kept(x: Tensor) -> Tensor:
    kept = [each for each in x if each > 0]
    if len(kept) == 0:
        return torch.zeros(())
    return torch.stack(kept).median()


@program(draw(2, 4), draw(2, 4, seed=1) * 5, torch.zeros(2, 4))
class MeanOfExits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        outs = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            outs.append(self.head(x))
            if x.abs().mean() > 0.3:
                break
        return sum(outs) / len(outs)


@program(floats(9, 3), floats(0.6, 0.6), floats(100, 1))
def smallest_of_a_trajectory(x: Tensor) -> Tensor:
    losses = [x.norm()]
    for _ in range(8):
        x = x - 0.5
        losses.append(x.norm())
        if losses[-1] < 0.5:
            break
    return min(losses)


@program(floats(9, 3), floats(0.1, 0.1), floats(100, 1))
def pop_the_last(x: Tensor) -> Tensor:
    outs = [x]
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    outs.pop()
    return sum(outs, torch.zeros(2))


@program(draw(5), -torch.ones(5), torch.ones(5))
def list_of_kept(x: Tensor) -> list[Tensor]:
    return [each for each in x if each > 0]
