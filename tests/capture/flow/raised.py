"""Functions in which data raise an exception, and another function, or what is around a loop,
catches it."""

# ruff: noqa: B904, TRY
# mypy: ignore-errors

from __future__ import annotations

import contextlib
from contextlib import suppress

import torch
from torch import nn


class Stop(Exception):
    def __init__(self, value, step=0):
        super().__init__("stop")
        self.value, self.step = value, step


class Worse(Stop):
    pass


def check(x):
    if x.sum() > 3:
        raise ValueError("too large")
    return x * 2


def two_frames_up(x):
    def inner(x):
        return check(x) + 1

    def outer(x):
        y = inner(x * 1)
        return y * 3

    try:
        return outer(x)
    except ValueError:
        return -x


def two_kinds(x):
    def find(x):
        if x[0] > 0:
            raise KeyError("a")
        if x[1] > 0:
            raise ValueError("b")
        return x

    try:
        return find(x)
    except KeyError:
        return x + 10
    except ValueError:
        return x + 20


def one_of_two_is_caught(x):
    def find(x):
        if x[0] > 0:
            raise KeyError("a")
        if x[1] > 100:
            raise ValueError("b")
        return x

    try:
        return find(x)
    except KeyError:
        return x + 10


def base_class(x):
    try:
        return check(x)
    except Exception:
        return x - 1


def lookup_error(x):
    def find(x):
        if x[0] > 0:
            raise IndexError
        return x

    try:
        return find(x)
    except LookupError:
        return x - 1


def value_in_it(x):
    def solve(x):
        for step in range(4):
            x = x / 2
            if x.norm() < 1:
                raise Stop(x, step)
        raise Worse(x * 100)

    try:
        solve(x)
    except Worse as found:
        return found.value + 1, 7
    except Stop as found:
        return found.value, found.step
    return x, -1


def text_of_it(x):
    try:
        return check(x)
    except ValueError as error:
        return x * len(str(error)) * len(error.args) * len(type(error).__name__)


def value_of_stop_iteration(x):
    def take(x):
        if x[0] > 0:
            raise StopIteration(x * 5)
        return x

    try:
        return take(x)
    except StopIteration as end:
        return end.value + 1


def known_one(x):
    error = ValueError("kept")

    def find(x):
        if x[0] > 0:
            raise error
        return x

    try:
        return find(x)
    except ValueError as found:
        return x * (2 if found is error else 3)


def in_a_sum(x):
    try:
        return x.cos() + check(x) * check(x - 1)
    except ValueError:
        return x


def in_arguments(x):
    try:
        return torch.stack([check(x), check(-x)]).sum(0)
    except ValueError:
        return x


def called_twice_caught_once(x):
    try:
        y = check(x)
    except ValueError:
        y = x * 0
    return y + check(x * 0.001)


def order_of_writes(x):
    log = torch.zeros(3)

    def work(x):
        log[0] += 1
        if x[0] > 0:
            raise ValueError("a")
        log[1] += 1
        return x

    try:
        x = work(x)
        log[2] += 1
    except ValueError:
        log[2] += 10
    return x + log


def with_finally_in_callee(x):
    log = torch.zeros(3)

    def work(x):
        try:
            if x[0] > 0:
                raise ValueError("a")
            x = x + 1
        finally:
            log[0] += 1
        return x

    try:
        x = work(x)
    except ValueError:
        log[2] += 10
    return x + log


def else_and_finally(x):
    n = torch.zeros(())
    try:
        y = check(x)
    except ValueError:
        y = x
    else:
        y = y + 5
    finally:
        n = n + 1
    return y, n


def suppressed(x):
    y = x
    with suppress(ValueError, KeyError):
        y = check(x)
        y = y + 7
    return y


def suppressed_by_its_module(x):
    with contextlib.suppress(Exception):
        x = check(x)
    return x


def not_suppressed(x):
    with suppress(KeyError):
        x = check(x / 100)
    return x


def raised_in_a_with(x):
    try:
        with torch.no_grad():
            if x[0] > 0:
                raise ValueError("a")
            x = x + 1
    except ValueError:
        x = x - 1
    return x


def raised_in_nested_loops(x):
    n = 0
    try:
        for i in range(3):
            for j in range(2):
                if x[i] > j:
                    raise Stop(x[i] * 2, i)
                n += 1
            n += 10
        n += 100
    except Stop as found:
        return found.value, n, found.step
    return x[0], n, -1


def raised_in_a_while(x):
    n = 0
    try:
        while x.norm() < 50:
            x = x * 2 + 1
            n += 1
            if x[0] > 20:
                raise StopIteration
    except StopIteration:
        n = n + 100
    return x, n


def raised_in_a_loop_with_else(x):
    try:
        for each in x:
            if each > 4:
                raise ValueError("a")
        else:
            x = x + 1
    except ValueError:
        x = x - 1
    return x


def caught_inside_and_outside(x):
    def inner(x):
        try:
            return check(x)
        except KeyError:
            return x * 100

    try:
        return inner(x)
    except ValueError:
        return x - 1


def raised_by_a_handler(x):
    def inner(x):
        try:
            return check(x)
        except ValueError:
            raise KeyError("other")

    try:
        return inner(x)
    except KeyError:
        return x - 1


def retried(x):
    for _ in range(3):
        try:
            return check(x)
        except ValueError:
            x = x / 4
    return x


def skips_bad_rows(x):
    total = torch.zeros(())
    for row in x:
        try:
            total = total + check(row)
        except ValueError:
            continue
    return total


def helper_that_only_raises(x):
    def fail(x):
        raise Stop(x * 3)

    def inner(x):
        if x[0] > 0:
            fail(x)
        return x

    try:
        return inner(x)
    except Stop as found:
        return found.value


def element_or_first(x):
    rows = [x, x * 2]
    try:
        return rows[int(x[0])]
    except IndexError:
        return rows[0] + 100


def key_or_none(x):
    table = {1: 2.0, 5: 7.0}
    try:
        scale = table[int(x[0])]
    except KeyError:
        scale = -1.0
    return x * scale


class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("failures", torch.zeros(()))

    def guard(self, x):
        assert x.abs().max() < 4, "out of range"
        return self.layer(x)

    def forward(self, x):
        try:
            return self.guard(x)
        except AssertionError:
            self.failures += 1
            return x * 0


def text_that_is_only_shown(x):
    def find(x):
        n = x.sum().item()
        if n > 0:
            raise ValueError(f"n is {n}")
        return x

    try:
        return find(x)
    except ValueError as error:
        print(error, f"{error}")
        return x + len(error.args)


class Box:
    pass


def attribute_that_a_callee_sets(x):
    box = Box()

    def find(x):
        box.n = 1
        if x[0] > 0:
            raise ValueError("a")
        box.n = 2
        return x

    with suppress(ValueError):
        find(x)
    return x * box.n


def handler_of_a_try_in_a_try(x):
    def find(x):
        try:
            try:
                return check(x)
            except ValueError:
                raise KeyError("k")
        except KeyError:
            return x + 7

    try:
        return find(x)
    except (KeyError, ValueError):
        return x * 0


def error_that_another_function_gives(x):
    known = Stop(3)

    def give():
        return known

    def find(x):
        if x[0] > 0:
            raise give()
        return x

    try:
        find(x)
    except Stop as found:
        found.step += 5
        return known.step, found is known
    return 7, True


def error_handed_on_by_two(x):
    known = Stop(3)

    def inner(x):
        if x[0] > 0:
            raise known
        return x

    def outer(x):
        return inner(x) + 1

    try:
        outer(x)
    except Stop as found:
        return found is known
    return True


class Slotted(Exception):
    __slots__ = ("value",)

    def __init__(self, value):
        super().__init__()
        self.value = value


def error_with_slots(x):
    def find(x):
        if x[0] > 0:
            raise Slotted(x * 3)
        return x

    try:
        return find(x)
    except Slotted as found:
        return found.value


def what_python_has_in_errors(x):
    def find(x):
        if x[0] > 0:
            raise ImportError("no", name="abc")
        if x[1] > 0:
            raise OSError(2, "no", "file")
        return x

    try:
        return find(x)
    except ImportError as found:
        return x + 1 if found.name == "abc" else x
    except FileNotFoundError as found:
        return x + found.errno if found.filename == "file" else x


@contextlib.contextmanager
def setting(box, value):
    before = box.value
    box.value = value
    try:
        yield
    finally:
        box.value = before


def a_manager_that_puts_back(x):
    box = Stop(1)
    try:
        with setting(box, 3), contextlib.nullcontext():
            if x[0] > 0:
                raise ValueError
            box.step += 1
    except ValueError:
        box.step += 10
    return x * box.value, box.step


CAPTURED = [
    error_that_another_function_gives, error_handed_on_by_two, error_with_slots,
    what_python_has_in_errors, a_manager_that_puts_back,
    text_that_is_only_shown, attribute_that_a_callee_sets,
    two_frames_up, two_kinds, one_of_two_is_caught, base_class, lookup_error, value_in_it,
    text_of_it, value_of_stop_iteration, known_one, in_a_sum, in_arguments,
    called_twice_caught_once, order_of_writes, with_finally_in_callee, else_and_finally,
    suppressed, suppressed_by_its_module, not_suppressed, raised_in_a_with,
    raised_in_nested_loops, raised_in_a_while, raised_in_a_loop_with_else,
    caught_inside_and_outside, raised_by_a_handler, retried, skips_bad_rows,
    helper_that_only_raises, element_or_first, key_or_none, Guarded,
]  # fmt: skip


def by_a_map(x):
    try:
        return sum(map(check, [x, x * 2]))
    except ValueError:
        return x


def by_a_generator(x):
    def make(x):
        for each in x:
            if each > 4:
                raise ValueError("a")
            yield each

    try:
        return sum(make(x))
    except ValueError:
        return x[0]


def by_a_property(x):
    class Box:
        @property
        def value(self):
            return check(x)

    try:
        return Box().value
    except ValueError:
        return x


def text_of_an_index(x):
    rows = [x, x * 2]
    try:
        return rows[int(x[0])]
    except IndexError as error:
        return x * len(str(error))


def text_of_a_number(x):
    n = x.sum().item()
    try:
        if n > 0:
            raise ValueError(f"n is {n}")
    except ValueError as error:
        x = x * len(str(error))
    return x


def text_of_a_number_in_another(x):
    def find(x):
        n = x.sum().item()
        if n > 0:
            raise ValueError(f"n is {n}")
        return x

    try:
        return find(x)
    except ValueError as error:
        return x if error.args[0] == "n is 0" else x + 1


class Told:
    def __init__(self):
        self.failed = False

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        self.failed = kind is not None


def a_manager_is_told(x):
    told = Told()
    try:
        with torch.no_grad(), told:
            check(x)
    except ValueError:
        x = x + 1
    return x, told.failed


def a_manager_is_told_by_a_callee(x):
    told = Told()

    def find(x):
        with told:
            if x[0] > 0:
                raise ValueError
            return x

    try:
        x = find(x)
    except ValueError:
        x = x + 1
    return x, told.failed


@contextlib.contextmanager
def counting(log):
    yield
    log.append(1)


def a_generator_is_told(x):
    log = []
    try:
        with counting(log):
            check(x)
    except ValueError:
        x = x + 1
    return x, len(log)


REFUSED = [
    text_of_a_number, text_of_a_number_in_another, by_a_map, by_a_generator, by_a_property,
    text_of_an_index, a_manager_is_told, a_manager_is_told_by_a_callee,
    a_generator_is_told,
]  # fmt: skip
