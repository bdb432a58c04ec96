"""What operators raise for the example's sizes, or for some data, and the program catches: with
others they do not raise it."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax import Dim
from lostwax.errors import CaptureError, ConstraintViolationError, InputValueError


def viewed(x: Tensor) -> Tensor:
    try:
        return x.view(2, -1)
    except RuntimeError:
        return x.view(1, -1)


def divided(x: Tensor) -> Tensor:
    try:
        return x + 10 // (x.shape[0] - 1)
    except ZeroDivisionError:
        return x


def divided_as_floats(x: Tensor) -> Tensor:
    try:
        return x * (1.0 / (x.shape[0] - 1))
    except ZeroDivisionError:
        return x


def rooted(x: Tensor) -> Tensor:
    try:
        return x * math.sqrt(x.shape[0] - 3)
    except ValueError:
        return x


def picked(x: Tensor) -> Tensor:
    try:
        return x[2] + 1
    except IndexError:
        return x[0]


def checked(x: Tensor) -> Tensor:
    try:
        torch._check(x.shape[0] > 3)
    except RuntimeError:
        return x + 1
    return x


def suppressed(x: Tensor) -> Tensor:
    with suppress(RuntimeError):
        x = x + torch.ones(3)  # which fits 3 sizes, and one
    return x


def rooted_above(x: Tensor) -> Tensor:
    try:
        return x * math.sqrt(x.shape[0] - 3)
    except ValueError:
        return x


@pytest.mark.parametrize(
    ("function", "example"),
    [
        (rooted_above, 5),
        (viewed, 1),
        (divided, 1),
        (divided_as_floats, 1),
        (rooted, 1),
        (picked, 2),
        (checked, 3),
        (suppressed, 4),
    ],
)
def test_what_is_caught_is_a_branch(function: Callable[[Tensor], Tensor], example: int) -> None:
    x = torch.arange(example * 1.0)
    with pytest.raises(ConstraintViolationError):
        lostwax.export(function, (x,), dynamic_shapes=({0: Dim("n", min=1, max=64)},))
    run = lostwax.export(function, (x,), dynamic_shapes=({0: Dim.AUTO},)).module()
    for n in range(1, 7):
        x = torch.arange(n * 1.0)
        with suppress(InputValueError):  # it may serve fewer sizes
            torch.testing.assert_close(run(x), function(x))
    x = torch.ones(example)
    torch.testing.assert_close(run(x), function(x))


def test_what_is_not_caught_is_raised() -> None:
    with pytest.raises(RuntimeError, match="shape '\\[2, -1\\]' is invalid"):
        lostwax.export(
            lambda x: x.view(2, -1), (torch.ones(3),), dynamic_shapes=({0: Dim("n", max=64)},)
        )


def test_in_a_side_that_the_example_does_not_take_it_is_refused() -> None:
    def viewed_or_not(x: Tensor) -> Tensor:
        if x.shape[0] > 3:
            return x
        try:
            return x.view(5)
        except RuntimeError:
            return x

    with pytest.raises(ConstraintViolationError) as refused:
        lostwax.export(
            viewed_or_not,
            (torch.ones(4),),
            dynamic_shapes=({0: Dim("n", min=1, max=64)},),
            control_flow="sizes",
        )
    (note, *_) = refused.value.__notes__
    assert "an operator fails" in note


def convolved(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return torch.conv1d(x[None, None], torch.ones(1, 1, 3)).sum()
    return x.sum()


def largest(x: Tensor) -> Tensor:
    found = [x.sum()]
    if x.sum() > -1:
        found.append(x.topk(2).values[1])
    else:
        found.append(x.view(2, -1).sum())
    return found[1]


@pytest.mark.parametrize("example", [0, 1, 4])
@pytest.mark.parametrize("function", [convolved, largest])
def test_a_side_on_data_that_raises_for_the_example_holds_for_others(
    function: Callable[[Tensor], Tensor], example: int
) -> None:
    sizes = ({0: Dim("n", max=64)},)
    run = lostwax.export(function, (torch.ones(example),), dynamic_shapes=sizes).module()
    for n in range(7):
        for x in (torch.arange(n * 1.0), -torch.ones(n)):
            try:
                wanted = function(x)
            except (RuntimeError, IndexError):
                with pytest.raises(RuntimeError):
                    run(x)
                continue
            torch.testing.assert_close(run(x), wanted)


# ------------------------------------------------------------------------------------ data decide


def quotient(x: Tensor) -> Any:
    n = x.item()
    try:
        return 10 // n
    except ZeroDivisionError:
        return -1


def quotient_of_floats(x: Tensor) -> Any:
    try:
        return 1 / x.float().item()
    except ArithmeticError:
        return -1.0


def reciprocal(x: Tensor) -> Any:
    try:
        return x.item() ** -1
    except ZeroDivisionError:
        return -1.0


def in_a_function(x: Tensor) -> Any:
    def divide(n: Any) -> Any:
        return 10 % n

    try:
        return divide(x.item())
    except Exception:
        return -1


def in_a_loop(x: Tensor) -> Any:
    found, n = 0, x.item()
    for i in range(3):
        try:
            found += 10 // (n - i)
        except ZeroDivisionError:
            continue
    return found


def in_a_side(x: Tensor) -> Any:
    if x > 1:
        with contextlib.suppress(ZeroDivisionError, KeyError):
            return x + 10 // (x.item() - 3)
    return x


def while_turning(x: Tensor) -> Any:
    n, total = x.item(), x * 0
    while total < 3:
        try:
            total = total + 10 // n
        except ZeroDivisionError:
            total = total + 1
    return total


def by_a_comprehension(x: Tensor) -> Any:
    n = x.item()
    try:
        return [10 // (n - i) for i in range(2)]
    except ZeroDivisionError:
        return [0, 0]


def returned_at_the_end(x: Tensor) -> Any:
    try:
        x = x + 10 // x.item()
    finally:
        return 3  # noqa: B012


def some_of_them(x: Tensor) -> Any:
    try:
        return 10 // x.item()
    except ZeroDivisionError as error:
        if "memory" in str(error):
            return 0
        raise


def root(x: Tensor) -> Any:
    try:
        return math.sqrt(x.item())
    except ValueError:
        return -1.0


def whole(x: Tensor) -> Any:
    try:
        return int(x.float().item())
    except (ValueError, OverflowError):
        return -1


def element(x: Tensor) -> Any:
    try:
        return torch.arange(4)[x]
    except IndexError:
        return torch.tensor(-1)


def length(x: Tensor) -> Any:
    try:
        return torch.arange(4).narrow(0, 0, x.item()).sum()  # type: ignore[arg-type]
    except RuntimeError:
        return torch.tensor(-1)


def embedded(x: Tensor) -> Any:
    try:
        return torch.nn.functional.embedding(x, torch.ones(4, 2))
    except IndexError:
        return torch.zeros(2)


def gathered(x: Tensor) -> Any:
    try:
        return torch.arange(4.0).gather(0, x.reshape(1))
    except RuntimeError:
        return torch.zeros(1)


def drawn(x: Tensor) -> Any:
    try:
        return torch.multinomial(x.float().reshape(1), 1)
    except RuntimeError:
        return torch.zeros(1, dtype=torch.int64)


def factored(x: Tensor) -> Any:
    try:
        return torch.linalg.cholesky(torch.eye(2) * x)
    except torch.linalg.LinAlgError:
        return torch.eye(2)


def inverted(x: Tensor) -> Any:
    try:
        return torch.linalg.inv(torch.eye(2) * x)
    except RuntimeError:
        return torch.eye(2)


def decomposed(x: Tensor) -> Any:
    try:
        return torch.linalg.eigh(torch.eye(2) * x)
    except Exception:
        return torch.ones(2), torch.eye(2)


def stated(x: Tensor) -> Any:
    try:
        torch._check(x.item() > 2)
    except RuntimeError:
        return x
    return x + 1


def asserted(x: Tensor) -> Any:
    try:
        torch._assert(x > 2, "")
    except AssertionError:
        return x
    return x + 1


CAUGHT: list[tuple[Callable[[Tensor], Any], str, str]] = [
    (quotient, "ZeroDivisionError", "except ZeroDivisionError:"),
    (quotient_of_floats, "ZeroDivisionError", "except ArithmeticError:"),
    (reciprocal, "ZeroDivisionError", "except ZeroDivisionError:"),
    (in_a_function, "ZeroDivisionError", "in in_a_function: except Exception:"),
    (in_a_loop, "ZeroDivisionError", "except ZeroDivisionError:"),
    (in_a_side, "ZeroDivisionError", "with contextlib.suppress"),
    (while_turning, "ZeroDivisionError", "except ZeroDivisionError:"),
    (by_a_comprehension, "ZeroDivisionError", "except ZeroDivisionError:"),
    (returned_at_the_end, "ZeroDivisionError", "in returned_at_the_end"),
    (some_of_them, "ZeroDivisionError", "except ZeroDivisionError as error:"),
    (root, "ValueError", "except ValueError:"),
    (whole, "ValueError", "except (ValueError, OverflowError):"),
    (element, "IndexError", "except IndexError:"),
    (length, "RuntimeError", "except RuntimeError:"),
    (embedded, "IndexError", "except IndexError:"),
    (gathered, "RuntimeError", "except RuntimeError:"),
    (drawn, "RuntimeError", "except RuntimeError:"),
    (factored, "LinAlgError", "except torch.linalg.LinAlgError:"),
    (inverted, "LinAlgError", "except RuntimeError:"),
    (decomposed, "LinAlgError", "except Exception:"),
    (stated, "RuntimeError", "except RuntimeError:"),
    (asserted, "AssertionError", "except AssertionError:"),
]


@pytest.mark.parametrize(("function", "kind", "handler"), CAUGHT)
def test_what_data_raise_and_somebody_catches_is_refused(
    function: Callable[[Tensor], Any], kind: str, handler: str
) -> None:
    with pytest.raises(CaptureError) as refused:
        lostwax.export(function, (torch.tensor(3),))
    first, at, *rest = str(refused.value).splitlines()
    assert f"data decide whether this raises {kind}, and that is caught" in first
    assert "  at tests/capture/flow/test_caught.py:" in at
    assert any(line.startswith("  caught at tests/") and handler in line for line in rest)


def dumped(x: Tensor) -> Any:
    n = x.item()
    try:
        return len(json.dumps([n]))
    except TypeError:
        return 100


def of_fractions(x: Tensor) -> Any:
    n = x.item()
    try:
        return float(Fraction(n, 4))
    except (ValueError, TypeError):
        n = 3
    return n


def bits(n: Any) -> Any:
    try:
        return int.bit_length(n)
    except:  # noqa: E722
        return 7


def of_another_function(x: Tensor) -> Any:
    return [bits(n) for n in (1, x.item())]


def in_a_with(x: Tensor) -> Any:
    n, text = x.item(), ""
    with suppress(TypeError):
        text = float.hex(n + 0.5)
    return len(text)


def in_a_loop(x: Tensor) -> Any:
    while x < 10:
        try:
            x = x + len(json.dumps(x.item()))
        except Exception:
            x = x + 1
    return x


def raised_as_another_and_caught(x: Tensor) -> Any:
    n = x.item()
    try:
        try:
            return len(json.dumps(n))
        except TypeError as error:
            raise ValueError("no") from error
    except ValueError:
        return 3


def on_one_side(x: Tensor) -> Any:
    n = x.item()
    return x + len(json.dumps(n)) if n > 2 else x


def of_a_span(x: Tensor) -> Any:
    n = x.item()
    try:
        return (datetime.timedelta(days=1) * n).days
    except TypeError:
        return 3


OF_C = [
    (dumped, "Object of type SymInt is not JSON serializable"),
    (of_fractions, "both arguments should be Rational instances"),
    (of_another_function, "descriptor 'bit_length' for 'int' objects doesn't apply"),
    (in_a_with, "descriptor 'hex' for 'float' objects doesn't apply"),
    (in_a_loop, "Object of type SymInt is not JSON serializable"),
    (raised_as_another_and_caught, "Object of type SymInt is not JSON serializable"),
    (on_one_side, "Object of type SymInt is not JSON serializable"),
    (of_a_span, "unsupported operand type"),
]


@pytest.mark.parametrize(("function", "text"), OF_C)
def test_what_python_raises_over_a_class_of_ours_and_somebody_catches_is_refused(
    function: Callable[[Tensor], Any], text: str
) -> None:
    with pytest.raises(CaptureError, match=text) as refused:
        lostwax.export(function, (torch.tensor(3),))
    first, at, *rest = str(refused.value).splitlines()
    assert "and this one depends on data or on a size" in first
    assert ("and that may be caught" in first) is (function is not on_one_side)
    assert "  at tests/capture/flow/test_caught.py:" in at
    assert "  why: it reads plain numbers, and nothing else" in rest
    assert rest[-1].startswith("  instead: compute with Python's operators")


def iterated(n: Any) -> Any:
    try:
        return tuple(n)
    except TypeError:
        return (n, n)


def counted(n: Any) -> Any:
    try:
        return len(n)
    except TypeError:
        return n


def unpacked(n: Any) -> Any:
    try:
        a, b = n
    except TypeError:
        a = b = n
    return a, b


def of_other_arguments(n: Any) -> Any:
    try:
        return bits(n=n, of=3)
    except TypeError:
        return n


def of_torch(n: Any) -> Any:
    try:
        return torch.full((2,), n, shape=2)  # type: ignore[call-overload]
    except TypeError:
        return torch.full((2,), n)


def without_that_name(n: Any) -> Any:
    try:
        return n.numel()
    except AttributeError:
        return n


@pytest.mark.parametrize(
    "use", [iterated, counted, unpacked, of_other_arguments, of_torch, without_that_name]
)
def test_what_eager_raises_as_well_is_caught(use: Callable[[Any], Any]) -> None:
    def forward(x: Tensor) -> Any:
        return use(x[0].item()), use(x.shape[0])

    sizes = ({0: lostwax.Dim("n", min=2)},)
    run = lostwax.export(forward, (torch.tensor([3, 1]),), dynamic_shapes=sizes).module()
    for x in (torch.tensor([3, 1]), torch.tensor([-2, 5, 7])):
        torch.testing.assert_close(run(x), forward(x))


def raised_as_another(x: Tensor) -> Any:
    try:
        return 10 // x.item()
    except ZeroDivisionError as error:
        raise ValueError("zero") from error


def raised_again(x: Tensor) -> Any:
    try:
        return 10 // x.item()
    except ZeroDivisionError:
        str(x.dtype)
        raise


def others_are_caught(x: Tensor) -> Any:
    with suppress(KeyError):
        try:
            return 10 // x.item()
        except (IndexError, TypeError):
            return 1


def cleaned_up(x: Tensor) -> Any:
    try:
        return 10 // x.item()
    finally:
        str(x.dtype)


def after_it(x: Tensor) -> Any:
    try:
        k = 10
    except ZeroDivisionError:
        k = 0
    else:
        k = k // x.item()  # type: ignore[assignment]
    return k


def in_the_handler(x: Tensor) -> Any:
    try:
        int("one")
    except ValueError:
        return 10 // x.item()


def never_zero(x: Tensor) -> Any:
    n = x.item()
    try:
        return 10 // (n * n + 1)
    except ZeroDivisionError:
        return 0


def asked_before(x: Tensor) -> Any:
    n = x.item()
    if n != 0:
        try:
            return 10 // n
        except ZeroDivisionError:
            return 1
    return 0


def of_no_memory(x: Tensor) -> Any:
    try:
        return torch.arange(4).gather(0, x.reshape(1) % 4)
    except torch.cuda.OutOfMemoryError:
        return x


def of_sizes_alone(x: Tensor) -> Any:
    try:
        return torch.relu(x) + torch.ones(3)
    except RuntimeError:
        return x


@pytest.mark.parametrize(
    "function",
    [
        raised_as_another,
        raised_again,
        others_are_caught,
        cleaned_up,
        after_it,
        in_the_handler,
        never_zero,
        asked_before,
        of_no_memory,
        of_sizes_alone,
    ],
)
def test_what_nobody_catches_is_captured(function: Callable[[Tensor], Any]) -> None:
    run = lostwax.export(function, (torch.tensor(3),)).module()
    for n in (3, 1, -2, 0):
        x = torch.tensor(n)
        try:
            wanted = function(x)
        except (ArithmeticError, ValueError):
            with pytest.raises(RuntimeError, match="is required"):
                run(x)
            continue
        torch.testing.assert_close(run(x), wanted)


# ---------------------------------------------------------------------------------------- managers


class Passing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        print(end="")


class Swallowing(Passing):
    def __exit__(self, kind: Any, *error: object) -> bool:  # type: ignore[override]
        return kind is not None


@contextlib.contextmanager
def cleaning_up() -> Any:
    try:
        yield
    finally:
        print(end="")


def picks_in_withs(x: Tensor, n: Tensor) -> Tensor:
    rows, held = [x, x + 1, x * 2], Passing()
    with torch.no_grad(), held, cleaning_up(), torch.autocast("cpu", enabled=False):
        return rows[int(n)]


def picks_where_others_are_caught(x: Tensor, n: Tensor) -> Tensor:
    rows, total = {0: x, 1: x + 1, 2: x * 2}, x * 0
    try:
        for _ in range(2):
            with suppress(IndexError):
                total = total + rows[int(n)]
    except ValueError:
        return x
    finally:
        print(end="")
    return total


def raises_in_withs(x: Tensor, n: Tensor) -> Tensor:
    with Passing():
        if n > 2 or n < 0:
            raise ValueError("no such row")
        with cleaning_up():
            return x * n


@pytest.mark.parametrize(
    "function", [picks_in_withs, picks_where_others_are_caught, raises_in_withs]
)
def test_what_a_manager_hands_on_is_raised(function: Callable[..., Tensor]) -> None:
    x = torch.arange(3.0)
    run = lostwax.export(function, (x, torch.tensor(1))).module()
    for n in (0, 1, 2):
        torch.testing.assert_close(run(x, torch.tensor(n)), function(x, torch.tensor(n)))
    for n in (3, 7):
        with pytest.raises((LookupError, ValueError)):
            function(x, torch.tensor(n))
        with pytest.raises(RuntimeError, match="is required"):
            run(x, torch.tensor(n))


def picks_in_a_swallowing_with(x: Tensor, n: Tensor) -> Tensor:
    rows, found = [x, x + 1, x * 2], x
    with torch.no_grad(), Swallowing():
        found = rows[int(n)]
    return found + 1


def picks_a_key_that_is_caught(x: Tensor, n: Tensor) -> Tensor:
    rows = {0: x, 1: x + 1, 2: x * 2}
    try:
        return rows[int(n)]
    except KeyError as error:
        return x * len(str(error))


def picks_an_attribute_that_is_caught(x: Tensor, n: Tensor) -> Tensor:
    with suppress(AttributeError):
        return getattr(ROWS, f"row{int(n)}") * x  # type: ignore[no-any-return]
    return x


class ROWS:
    row0, row1, row2 = 0, 1, 2


def raises_in_a_swallowing_with(x: Tensor, n: Tensor) -> Tensor:
    with Swallowing():
        if n > 2:
            raise ValueError("no such row")
        return x * n
    return x


@pytest.mark.parametrize(
    "function",
    [
        picks_in_a_swallowing_with,
        picks_a_key_that_is_caught,
        picks_an_attribute_that_is_caught,
        raises_in_a_swallowing_with,
    ],
)
def test_what_may_be_swallowed_is_refused(function: Callable[..., Tensor]) -> None:
    function(torch.arange(3.0), torch.tensor(7))  # it is caught
    with pytest.raises(CaptureError, match="Error, and that may be caught") as refused:
        lostwax.export(function, (torch.arange(3.0), torch.tensor(1)))
    assert f" in {function.__name__}: " in str(refused.value)


# ----------------------------------------------------------------- what is no Exception, and caught


class Stop(BaseException):
    pass


class Noting:
    """Catches all, and notes what."""

    def __init__(self, log: list[int]) -> None:
        self.log = log

    def __enter__(self) -> None:
        self.log.append(1)

    def __exit__(self, kind: Any, *_: object) -> bool:
        self.log.append(2 if kind is None else 3)
        return True


def raise_in_helper(x: Tensor, kind: Any) -> Tensor:
    def helper() -> Tensor:
        if x.sum() > 0:
            raise kind
        return x + 1

    try:
        return helper()
    except kind:
        return x * 2


def raise_in_finally(x: Tensor, kind: Any) -> Any:
    n = 0
    try:
        try:
            if x.sum() > 0:
                raise kind
            n = n + 1
        finally:
            n = n + 10
    except BaseException:
        n = n + 100
    return x + n


def raise_in_with(x: Tensor, kind: Any) -> Any:
    log: list[int] = []
    with Noting(log):
        if x.sum() > 0:
            raise kind
        log.append(4)
    return x + sum(log)


def raise_in_loop(x: Tensor, kind: Any) -> Tensor:
    try:
        while x.sum() < 5:
            x = x + 1
            raise kind
    except kind:
        x = x * 2
    return x


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, Stop])
@pytest.mark.parametrize("call", [raise_in_helper, raise_in_loop, raise_in_finally])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_no_exception_and_caught_goes_as_in_eager(
    call: Any, kind: Any, sign: float
) -> None:
    run = lostwax.export(lambda x: call(x, kind), (torch.ones(3) * sign,)).module()
    for x in (torch.ones(3), -torch.ones(3), torch.full((3,), 9.0)):
        assert torch.equal(run(x), call(x, kind))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, Stop])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_no_exception_and_caught_is_refused(kind: Any, sign: float) -> None:
    with pytest.raises(CaptureError, match=f"raises {kind.__name__}"):
        lostwax.export(lambda x: raise_in_with(x, kind), (torch.ones(3) * sign,))


def test_what_is_no_exception_and_not_caught_is_refused() -> None:
    """It ended the process that exports."""

    def call(x: Tensor) -> Tensor:
        if x.sum() > 0:
            sys.exit()
        return x

    with pytest.raises(CaptureError, match=r"raises SystemExit(.|\n)*instead: raise an exception"):
        lostwax.export(call, (torch.ones(3),))
