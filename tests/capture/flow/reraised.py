"""Functions that raise in handlers, and ask what an exception comes of."""

# mypy: ignore-errors
# ruff: noqa: B904

from __future__ import annotations

import sys
import traceback


class Bad(Exception):
    def __init__(self, value):
        super().__init__("bad")
        self.value = value


class Factory:
    def error(self, x):
        return Bad(x + 1)

    @classmethod
    def of(cls, x):
        return Bad(x + 2)


def check(x):
    if x.sum() > 0:
        raise ValueError("a")
    return x


def checked(x):
    try:
        return check(x)
    except ValueError:
        raise KeyError("b")


def checked_from(x):
    try:
        return check(x)
    except ValueError as e:
        raise KeyError("b") from e


def checked_none(x):
    try:
        return check(x)
    except ValueError:
        raise KeyError("b") from None


def rethrow(x):
    try:
        return check(x)
    except ValueError:
        raise


def own(x):
    try:
        if x.sum() > 0:
            raise ValueError("a")
        y = x
    except ValueError:
        raise KeyError("b")
    return y


def make_error(x):
    return ValueError("made")


def made(x):
    if x.sum() > 0:
        raise make_error(x)
    return x


def make_bad(x):
    return Bad(x * 2)


def ctx_two(x):
    try:
        return checked(x)
    except KeyError:
        raise RuntimeError("c")


def context_is_there(x):
    try:
        return checked(x)
    except KeyError as e:
        return x * 2 if e.__context__ is None else x * 3


def context_in_a_function(x):
    try:
        return own(x)
    except KeyError as e:
        return x * 2 if e.__context__ is None else x * 3


def no_context(x):
    try:
        return check(x)
    except ValueError as e:
        return x * 2 if e.__context__ is None else x * 3


def context_of_a_handler_around(x):
    try:
        raise KeyError("outer")
    except KeyError:
        try:
            return check(x)
        except ValueError as e:
            return x * 2 if isinstance(e.__context__, KeyError) else x * 3


def suppresses_nothing(x):
    try:
        return checked(x)
    except KeyError as e:
        return x * 2 if e.__suppress_context__ else x * 3


def from_another(x):
    try:
        return checked_from(x)
    except KeyError:
        return x * 2


def from_none(x):
    try:
        return checked_none(x)
    except KeyError:
        return x * 2


def no_cause(x):
    try:
        return checked_none(x)
    except KeyError as e:
        return x * 2 if e.__cause__ is None and e.__suppress_context__ else x * 3


def raised_again(x):
    try:
        return rethrow(x)
    except ValueError:
        return x * 2


def raised_again_with_arguments(x):
    try:
        return rethrow(x)
    except ValueError as e:
        return x * len(e.args)


def raised_again_after_a_change(x):
    n = 0
    try:
        try:
            check(x)
        except ValueError:
            n += 1
            raise
        finally:
            n += 10
    except ValueError:
        n += 100
    return x * n


def raised_again_in_a_loop(x):
    for _ in range(3):
        try:
            x = rethrow(x)
        except ValueError:
            x = x - 1
    return x


def raised_by_its_name(x):
    try:
        try:
            check(x)
        except ValueError as e:
            raise e
    except ValueError:
        return x * 2
    return x


def raised_again_if(x):
    try:
        try:
            check(x)
        except ValueError:
            if x.sum() > 5:
                raise
            x = x + 1
    except ValueError:
        return x * 2
    return x


def raised_again_with_a_tensor(x):
    try:
        try:
            if x.sum() > 0:
                raise Bad(x * 2)
        except Bad as e:
            e.value = e.value + 1
            raise
    except Bad as e:
        return e.value
    return x


def made_caught(x):
    try:
        return made(x)
    except ValueError:
        return x * 2


def made_caught_in(x):
    try:
        if x.sum() > 0:
            raise make_error(x)
        y = x
    except ValueError:
        y = x * 2
    return y


def made_value(x):
    try:
        if x.sum() > 0:
            raise make_bad(x)
        y = x
    except Bad as e:
        y = e.value
    return y


def made_value_called(x):
    def inner(x):
        if x.sum() > 0:
            raise make_bad(x)
        return x

    try:
        return inner(x)
    except Bad as e:
        return e.value


def made_method(x):
    try:
        if x.sum() > 0:
            raise Factory().error(x)
        y = x
    except Bad as e:
        y = e.value
    return y


def raised_again_and_not_caught(x):
    try:
        check(x)
    except ValueError:
        if x.sum() > 5:
            raise
        return x * 2
    return x


def nested_finally(x):
    n = 0
    try:
        try:
            try:
                check(x)
            finally:
                n += 1
        finally:
            n += 10
    except ValueError:
        n += 100
    return x * n


def finally_tensor(x):
    y = x
    try:
        try:
            y = check(x)
        finally:
            y = y + 1
    except ValueError:
        y = y * 2
    return y


def finally_in_loop(x):
    n = 0
    for i in range(3):
        try:
            try:
                if x.sum() > i:
                    raise ValueError
                n += 1
            finally:
                n += 10
        except ValueError:
            n += 100
    return x * n


def finally_break(x):
    n = 0
    for i in range(3):
        try:
            if x.sum() > i:
                break
            n += 1
        finally:
            n += 10
    return x * n


def finally_continue(x):
    n = 0
    for i in range(3):
        try:
            if x.sum() > i:
                continue
            n += 1
        finally:
            n += 10
    return x * n


def finally_return_in(x):
    n = []

    def f(x):
        try:
            if x.sum() > 0:
                return x * 2
            return x * 3
        finally:
            n.append(1)

    y = f(x)
    return y * len(n)


def exc_info(x):
    try:
        check(x)
    except ValueError:
        return x * (2 if sys.exc_info()[0] is ValueError else 3)
    return x


def exc_info_after(x):
    try:
        check(x)
    except ValueError:
        x = x * 2
    return x * (1 if sys.exc_info()[0] is None else 5)


def exc_info_called(x):
    def g():
        return sys.exc_info()[1].args[0] == "a"

    try:
        check(x)
    except ValueError:
        return x * (2 if g() else 3)
    return x


def notes(x):
    def f(x):
        try:
            return check(x)
        except ValueError as e:
            e.add_note("n")
            raise e

    try:
        return f(x)
    except ValueError as e:
        return x * len(e.__notes__)


def notes_new(x):
    def f(x):
        if x.sum() > 0:
            e = ValueError("a")
            e.add_note("1")
            e.add_note("2")
            raise e
        return x

    try:
        return f(x)
    except ValueError as e:
        return x * len(e.__notes__)


def lineno(x):
    try:
        return check(x)
    except ValueError as e:
        return x * (e.__traceback__.tb_lineno - lineno.__code__.co_firstlineno)


def came_through_another(x):
    try:
        return check(x)
    except ValueError as e:
        return x * (2 if e.__traceback__.tb_next is not None else 3)


def came_through_no_other(x):
    try:
        if x.sum() > 0:
            raise ValueError("a")
    except ValueError as e:
        return x * (2 if e.__traceback__.tb_next is None else 3)
    return x


def with_a_traceback(x):
    def f(x):
        try:
            return check(x)
        except ValueError as e:
            raise KeyError("b").with_traceback(e.__traceback__)

    try:
        return f(x)
    except KeyError:
        return x * 2


def context_in_a_loop(x):
    try:
        for i in range(3):
            try:
                if x.sum() > i:
                    raise ValueError
            except ValueError:
                raise KeyError(i)
            x = x + 0.5
    except KeyError as e:
        return x * (2 if e.__context__ is not None else 3)
    return x


def value_bare(x):
    def f(x):
        try:
            if x.sum() > 0:
                raise Bad(x * 2)
        except Bad as e:
            e.value = e.value + 1
            raise
        return x

    try:
        return f(x)
    except Bad as e:
        return e.value


def value_e(x):
    def f(x):
        try:
            if x.sum() > 0:
                raise Bad(x * 2)
        except Bad as e:
            raise e
        return x

    try:
        return f(x)
    except Bad as e:
        return e.value


def value_from(x):
    def f(x):
        try:
            if x.sum() > 0:
                raise Bad(x * 2)
        except Bad as e:
            raise KeyError(e.value) from e
        return x

    try:
        return f(x)
    except KeyError as e:
        return e.args[0]


def own_error(x):
    err = ValueError(3)
    try:
        if x.sum() > 0:
            raise err
    except ValueError as e:
        return x * (2 if e is err else 3)
    return x


def own_error_called(x):
    err = ValueError(3)

    def f(x):
        if x.sum() > 0:
            raise err
        return x

    try:
        return f(x)
    except ValueError as e:
        return x * (2 if e is err else 3)


def class_of_the_context(x):
    try:
        return checked(x)
    except KeyError as e:
        return x * 2 if isinstance(e.__context__, ValueError) else x * 3


def class_of_the_second_context(x):
    try:
        return ctx_two(x)
    except RuntimeError as e:
        return x * (2 if type(e.__context__) is KeyError else 3)


def arguments_of_the_context(x):
    try:
        return checked(x)
    except KeyError as e:
        return x * (2 if e.__context__.args == ("a",) else 3)


def context_raised(x):
    try:
        try:
            return checked(x)
        except KeyError as e:
            raise e.__context__
    except ValueError:
        return x * 2


def calls_come_through(x):
    try:
        return check(x)
    except ValueError as e:
        return x * len(traceback.extract_tb(e.__traceback__))


def last_call_come_through(x):
    try:
        return check(x)
    except ValueError as e:
        return x * (2 if traceback.extract_tb(e.__traceback__)[-1].name == "check" else 3)


def text_of_calls_come_through(x):
    try:
        return check(x)
    except ValueError:
        return x * (2 if "check" in traceback.format_exc() else 3)


def value_of_the_cause(x):
    def f(x):
        try:
            if x.sum() > 0:
                raise Bad(x * 2)
        except Bad as e:
            raise KeyError(1) from e
        return x

    try:
        return f(x)
    except KeyError as e:
        return e.__cause__.value


CAPTURED = [
    context_is_there,
    context_in_a_function,
    no_context,
    context_of_a_handler_around,
    suppresses_nothing,
    from_another,
    from_none,
    no_cause,
    raised_again,
    raised_again_with_arguments,
    raised_again_after_a_change,
    raised_again_in_a_loop,
    raised_by_its_name,
    raised_again_if,
    raised_again_with_a_tensor,
    made_caught,
    made_caught_in,
    made_value,
    made_value_called,
    made_method,
    raised_again_and_not_caught,
    nested_finally,
    finally_tensor,
    finally_in_loop,
    finally_break,
    finally_continue,
    finally_return_in,
    exc_info,
    exc_info_after,
    exc_info_called,
    notes,
    notes_new,
    lineno,
    came_through_another,
    came_through_no_other,
    with_a_traceback,
    context_in_a_loop,
    value_bare,
    value_e,
    value_from,
    own_error,
    own_error_called,
]
REFUSED = [
    class_of_the_context,
    class_of_the_second_context,
    arguments_of_the_context,
    context_raised,
    calls_come_through,
    last_call_come_through,
    text_of_calls_come_through,
    value_of_the_cause,
]
