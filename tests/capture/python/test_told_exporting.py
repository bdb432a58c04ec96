"""What code is told that asks whether it is being exported, by the policy `tell_exporting`."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax.errors import ConstraintViolationError, LostwaxError

X = torch.arange(6.0).reshape(2, 3)


def other_values(x: Tensor) -> Tensor:
    if torch.compiler.is_exporting():
        return x + 1
    return x + 2


def same_values(x: Tensor) -> Tensor:
    return x * 2 if torch.compiler.is_compiling() else x + x


def is_tracing() -> bool:
    return torch.compiler.is_compiling()


def fails_if_told(x: Tensor) -> Tensor:
    if is_tracing():
        torch.manual_seed(0)
    return x * 3


def fails_anyway(x: Tensor) -> Tensor:
    torch.manual_seed(0 if is_tracing() else 1)
    return x


def asks_nothing(x: Tensor) -> Tensor:
    return torch.nn.functional.softmax(x, -1)


def export(function: Any, **options: Any) -> Any:
    return lostwax.export(function, (X,), **options)


def test_yes_where_that_can_be_captured() -> None:
    program = export(same_values)
    assert program.settings.exporting
    (line,) = program.settings.asked
    assert "test_told_exporting.py" in line
    assert line.endswith("in same_values")


def test_as_eager_where_that_is_refused() -> None:
    program = export(fails_if_told)
    torch.testing.assert_close(program.module()(X), fails_if_told(X))
    assert not program.settings.exporting
    assert program.settings.asked[0].endswith("in fails_if_told")  # not in is_tracing


def test_the_first_refusal_is_told_where_both_are() -> None:
    with pytest.raises(LostwaxError, match="seed"):
        export(fails_anyway)


def other_constants(x: Tensor) -> Tensor:
    return x + torch.tensor([1.0, 2, 3] if torch.compiler.is_exporting() else [4.0, 5, 6])


@pytest.mark.parametrize("function", [other_values, other_constants])
def test_compare_takes_eager_where_values_differ(function: Any) -> None:
    with pytest.warns(UserWarning, match="gives other values if it is told"):
        program = export(function, tell_exporting="compare")
    torch.testing.assert_close(program.module()(X), function(X))


def test_compare_keeps_the_way_of_exports_where_values_are_the_same() -> None:
    assert export(same_values, tell_exporting="compare").settings.exporting


def test_forced() -> None:
    torch.testing.assert_close(export(other_values, tell_exporting=False).module()(X), X + 2)
    torch.testing.assert_close(export(other_values, tell_exporting=True).module()(X), X + 1)
    with pytest.raises(LostwaxError, match="seed"):
        export(fails_if_told, tell_exporting=True)
    with pytest.raises(ValueError, match="tell_exporting= takes"):
        export(same_values, tell_exporting="maybe")


def test_check_says_it() -> None:
    found = lostwax.check(export(other_values), other_values)
    assert not found.ok
    assert "code asked whether it was being exported, and was told: yes" in found.report
    assert "instead: export(..., tell_exporting=False)" in found.report
    found = lostwax.check(export(fails_if_told), fails_if_told)
    assert found.ok
    assert "was told: no, as in eager" in found.report
    assert "code asked" not in lostwax.check(export(asks_nothing), asks_nothing).report


def test_files_keep_it() -> None:
    file = io.BytesIO()
    program = export(fails_if_told)
    lostwax.save(program, file, metadata="full")
    file.seek(0)
    assert lostwax.load(file).settings == program.settings


def test_one_capture_where_nothing_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = sys.modules["lostwax.capture.export"]
    made: list[Any] = []
    plain = capture._make_attempt
    monkeypatch.setattr(capture, "_make_attempt", lambda *a: made.append(a) or plain(*a))
    export(asks_nothing, tell_exporting="compare")
    assert len(made) == 1
    export(same_values)
    assert len(made) == 2


def raises_if_told(x: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_exporting():
        return x.view(7)
    return x[: len(x)]


def test_what_the_module_raises_on_the_way_of_exports_is_not_eagers() -> None:
    """Told that nothing is exported, it raises nothing; that a size cannot vary is said then."""
    with pytest.raises(ConstraintViolationError, match=r"len\(x\) is a plain integer"):
        lostwax.export(raises_if_told, (X,), dynamic_shapes=({0: lostwax.Dim("n")},))
