"""Functions with `try` in `try`, `finally` and loops, which data raise through."""

# mypy: ignore-errors
# ruff: noqa: B904

from __future__ import annotations

import torch

from tests.capture.flow.reraised import Bad, check


def left_by_each_way(x):
    log = 0
    for i in range(3):
        try:
            try:
                if x.sum() > i:
                    raise Bad(x * i)
                log += 1
            except Bad:
                if x.sum() > 3:
                    raise
                log += 10
                continue
            finally:
                log += 100
        except Bad:
            log += 1000
            break
    else:
        log += 5
    return x * log


def raised_in_a_handler_of_another(x):
    try:
        try:
            if x.sum() > 0:
                raise ValueError
        except ValueError:
            try:
                if x.sum() > 5:
                    raise KeyError
            except KeyError:
                x = x + 1
            raise IndexError
    except IndexError:
        return x * 2
    return x


def wrapped_and_counted(x):
    def f(x):
        try:
            if x.sum() > 0:
                raise ValueError("a")
            return x
        except ValueError as e:
            raise RuntimeError("wrapped") from e
        finally:
            log.append(1)

    log = []
    try:
        y = f(x)
    except RuntimeError:
        y = x * 2
    return y * len(log)


def turns_that_raise_and_end(x):
    while x.sum() > 0:
        try:
            if x.sum() > 5:
                raise ValueError
            x = x - 1
        except ValueError:
            x = x - 2
        finally:
            x = x - 0.5
    return x


def loop_left_by_a_cause(x):
    while True:
        try:
            try:
                x = x - 1
                if x.sum() < 0:
                    raise StopIteration
            except StopIteration as e:
                raise Bad(x) from e
        except Bad as e:
            return e.value


def nothing_to_raise_again(x):
    try:
        if x.sum() > 0:
            raise
    except RuntimeError:
        return x * 3
    return x


def values_that_raise_collected(x):
    errors = []
    for v in x:
        try:
            check(v)
        except ValueError:
            errors.append(v)
    return torch.stack(errors).sum() if errors else x.sum() * 0


def assertion_from_none(x):
    try:
        try:
            assert x.sum() < 0, "pos"
        except AssertionError as e:
            raise ValueError(str(e)) from None
    except ValueError as e:
        return x * len(e.args)
    return x


def cause_that_data_choose(x):
    try:
        try:
            if x.sum() > 0:
                raise ValueError("a") from (KeyError("k") if x.sum() > 5 else None)
        except ValueError as e:
            return x * (2 if e.__cause__ is None else 3)
    finally:
        pass
    return x


def attribute_of_what_is_raised_again(x):
    try:
        try:
            check(x)
        except (ValueError, TypeError) as e:
            e.extra = x * 2
            raise
    except ValueError as e:
        return e.extra
    return x


def cause_of_what_is_raised_again(x):
    try:
        try:
            check(x)
        except ValueError as e:
            raise e from KeyError("z")
    except ValueError as e:
        return x * (2 if e.__cause__ is not None else 3)
    return x


def raised_of_its_class(x):
    try:
        try:
            check(x)
        except ValueError as e:
            raise type(e)("b")
    except ValueError as e:
        return x * len(e.args[0])
    return x


def raised_again_beside_others(x):
    seen = 0
    try:
        try:
            check(x)
        except ValueError:
            raise
        except Exception:
            seen += 1
        else:
            seen += 10
    except ValueError:
        seen += 100
    return x * seen


def changed_in_each_part(x):
    y = x
    try:
        y = x + 1
        try:
            y = y + 1
            check(x)
            y = y + 1
        finally:
            y = y * 2
        y = y + 1
    except ValueError:
        y = y + 100
    return y


def written_in_each_part(x):
    y = x.clone()
    try:
        try:
            y.add_(1)
            check(x)
            y.add_(1)
        except ValueError:
            y.mul_(2)
            raise
        finally:
            y.add_(5)
    except ValueError:
        y.mul_(3)
    return y


def kept_in_each_part(x):
    buf = [x]
    try:
        try:
            buf.append(check(x))
        finally:
            buf.append(x * 2)
    except ValueError:
        buf.append(x * 3)
    return buf[-1] + buf[-2]


def one_of_two_errors(x):
    if x.sum() > 0:
        e = ValueError(1)
    else:
        e = ValueError(2)
    return x * e.args[0]


CAPTURED = [
    left_by_each_way,
    raised_in_a_handler_of_another,
    wrapped_and_counted,
    turns_that_raise_and_end,
    loop_left_by_a_cause,
    nothing_to_raise_again,
    values_that_raise_collected,
    assertion_from_none,
    cause_that_data_choose,
    attribute_of_what_is_raised_again,
    cause_of_what_is_raised_again,
    raised_of_its_class,
    raised_again_beside_others,
    changed_in_each_part,
    written_in_each_part,
    kept_in_each_part,
    one_of_two_errors,
]
