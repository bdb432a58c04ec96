"""Functions that add up, search, or take from lists of which data decide how long they are."""

# mypy: ignore-errors

from __future__ import annotations

from collections import deque

import torch


def halves(x):
    found = [x]
    while x.norm() > 1:
        x = x / 2
        found.append(x)
    return found


def positive(x):
    return [each for each in x if each > 0]


def places(x):
    return [i for i, each in enumerate(x) if each > 0]


def mean(x):
    outs = [x]
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    return sum(outs) / len(outs)


def mean_of_what_a_function_gives(x):
    return sum(halves(x)) / len(halves(x))


def sum_from_a_tensor(x):
    return sum(positive(x), torch.zeros(()))


def sum_from_a_tensor_by_name(x):
    return sum(positive(x), start=torch.ones(4))


def mean_or_zero(x):
    found = [each for each in x if each > 0]
    if not found:
        return torch.zeros(())
    return sum(found) / len(found)


def mean_in_one_expression(x):
    found = [each for each in x if each > 0]
    return sum(found) / len(found) if found else torch.zeros(())


def sum_of_numbers(x):
    return x * sum(places(x))


def sum_of_floats(x):
    numbers = []
    while x.sum() > 0:
        x = x - 1
        numbers.append(x.sum().item())
    return x + sum(numbers)


def sum_of_truths(x):
    found = [x > 0]
    while x.sum() > 0:
        x = x - 1
        found.append(x > 0)
    return sum(found)


def sum_in_the_loop(x):
    outs = [x]
    while x.norm() > 1 and len(outs) < 5:
        x = x / 2
        outs.append(x)
        x = x - sum(outs) * 0.01
    return x


def two_sums(x):
    one, other = [], []
    for each in x:
        (one if each > 0 else other).append(each)
    return sum(one, torch.zeros(())), sum(other, torch.zeros(()))


def largest_or_default(x):
    return max(positive(x), default=torch.tensor(-1.0))


def largest_or_an_error(x):
    return max(positive(x)), min(positive(x))


def nearest(x):
    return max([x[0], *positive(x)], key=lambda each: -(each - 2).abs())


def first_of_the_largest(x):
    found = [(x[0] * 0, 0)]
    for i, each in enumerate(x):
        if each != 0:
            found.append((each.sign(), i))
    return max(found, key=lambda pair: pair[0])


def smallest_number(x):
    return x * min([9, *places(x)], key=lambda i: -i), min([9, *places(x)])


def largest_with_nan(x):
    return max([x[0] * float("nan"), *positive(x)])


def tensor_of_numbers(x):
    return torch.tensor([3, *places(x)]), torch.tensor(places(x), dtype=torch.int32)


def tensor_of_floats(x):
    found = [each.item() * 1e-3 + 1 for each in x if each > 0]
    return torch.tensor(found), torch.tensor(found, dtype=torch.float64)


def tensor_of_truths(x):
    return torch.tensor([True, *[bool(each > 1) for each in x if each > 0]])


def without_the_last(x):
    outs = [x]
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    last = outs.pop()
    return sum(outs, torch.zeros(4)), len(outs), last


def taken_and_appended(x):
    outs = [x]
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    y = outs.pop()
    outs.append(y * 2)
    outs.append(y)
    return torch.stack(outs), outs[-1]


def taken_from_another_variable(x):
    outs = [x]
    other = outs
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    outs.pop()
    return len(other) * x


def taken_or_an_error(x):
    outs = []
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    return outs.pop()


def is_among_them(x):
    found = [0, *places(x)]
    return x + 1 if 2 in found else x, 1 not in found


def taken_from_the_front(x):
    outs = positive(x)
    outs.pop(0)
    return sum(outs, torch.zeros(()))


def taken_on_one_side(x):
    outs = halves(x)
    if x[0] > 0:
        outs.pop()
    return sum(outs, torch.zeros(4))


def taken_and_appended_again(x):
    todo, turns = [0], 0
    while todo:
        todo.pop()
        turns += 1
        if x[0] > 0 and turns < 2:
            todo.append(1)
    return x + turns


def lengths_of_runs(x):
    signs, counts = [x[0] > 0], [1]
    for each in x[1:]:
        if (each > 0) == signs[-1]:
            counts[-1] += 1
        else:
            signs.append(each > 0)
            counts.append(1)
    return torch.stack(signs), torch.tensor(counts)


def put_in_front(x):
    outs = []
    for each in x:
        if each > 0:
            outs.insert(0, each)
    outs.insert(0, x[0])
    return torch.stack(outs)


def taken_and_put_back(x):
    queue, done, budget = deque(x), torch.zeros(()), 6
    while queue and budget > 0:
        each = queue.popleft()
        if each > 2:
            queue.append(each / 2)
        elif each < -2:
            queue.appendleft(each / 4)
        else:
            done = done * 2 + each
        budget -= 1
    return done


def rising_window(x):
    queue, total = deque([x[0]]), torch.zeros(())
    for each in x[1:]:
        while queue and queue[-1] < each:
            queue.pop()
        queue.append(each)
        total = total + queue[0]
    return total


def histogram(x):
    bins = [0] * (int(x.abs().max()) + 1)
    for each in x:
        bins[int(each.abs())] += 1
    return torch.tensor(bins)


def replaced_by_index(x):
    outs = halves(x)
    outs[-1] = x * 3
    outs[len(outs) // 2] = x - 1
    return torch.stack(outs)


def swapped(x):
    outs = halves(x)
    last = len(outs) - 1
    outs[0], outs[last] = outs[last], outs[0]
    return torch.stack(outs)


CAPTURED = [
    mean, mean_of_what_a_function_gives, sum_from_a_tensor, sum_from_a_tensor_by_name,
    mean_or_zero, mean_in_one_expression, sum_of_numbers, sum_of_floats, sum_of_truths,
    sum_in_the_loop, two_sums, largest_or_default, largest_or_an_error, nearest,
    first_of_the_largest, smallest_number, largest_with_nan, tensor_of_numbers, tensor_of_floats,
    tensor_of_truths, without_the_last, taken_and_appended, taken_from_another_variable,
    taken_or_an_error, is_among_them, taken_from_the_front, taken_on_one_side,
    taken_and_appended_again, lengths_of_runs, put_in_front, taken_and_put_back, rising_window,
    histogram, replaced_by_index, swapped,
]  # fmt: skip


def tensor_of_tensors(x):
    return torch.tensor([x[0], *positive(x)])


def largest_and_caught(x):
    try:
        return max(positive(x))
    except ValueError:
        return x.sum()


def taken_and_caught(x):
    try:
        return positive(x).pop()
    except IndexError:
        return x.sum()


def taken_and_written_to(x):
    outs = [x]
    while x.norm() > 1:
        x = x / 2
        outs.append(x)
    outs.pop().mul_(2)
    return x


def taken_from_the_middle(x):
    outs = halves(x)
    outs.pop(1)
    return sum(outs, torch.zeros(4))


def tensor_looked_for(x):
    return x + 1 if x[0] in positive(x) else x


def longer_while_gone_over(x):
    outs, turns = positive(x), 0
    for each in outs:
        if turns < 3:
            outs.append(each)
        turns += 1
    return turns


def shorter_while_gone_over(x):
    outs, turns = positive(x), 0
    for _ in outs:
        outs.pop()
        turns += 1
    return turns


def replaced_while_gone_over(x):
    outs, total = positive(x), torch.zeros(())
    for each in outs:
        outs[-1] = each * 2
        total = total + each
    return total


REFUSED = [
    longer_while_gone_over, shorter_while_gone_over, replaced_while_gone_over,
    tensor_of_tensors, largest_and_caught, taken_and_caught,
    taken_and_written_to, taken_from_the_middle, tensor_looked_for,
]  # fmt: skip
