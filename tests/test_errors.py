"""The classes of errors: codes that stay, messages that show them and mark the user's line. That
the example of each gives it, and that the mended form gives none, tests/test_docs.py tests."""

from __future__ import annotations

import inspect
import pickle
import tomllib
from pathlib import Path

import pytest
import torch

import lostwax
from lostwax import errors
from lostwax.errors.page import read_page
from lostwax.location import Span, mark_span
from lostwax.problems.kinds import KINDS

CODES = tomllib.loads((Path(__file__).parent / "error_codes.toml").read_text())


def test_an_internal_error_shows_no_code():
    from lostwax.ir.decompose.expander import CannotExpand

    assert str(CannotExpand("it writes")) == "it writes"


def test_every_class_has_a_code_of_its_own_and_keeps_it():
    found = [getattr(errors, name) for name in errors.__all__]
    found = [c for c in found if inspect.isclass(c)]
    assert [*errors.CLASSES] == sorted(found, key=lambda c: c.code)
    own = {c.code: c.__name__ for c in errors.CLASSES if "code" in vars(c)}
    assert own == {code: name for code, name in CODES.items() if code < "LW1"}
    assert len(own) == len(errors.CLASSES)
    assert {k.code: k.name for k in KINDS} == {c: n for c, n in CODES.items() if c >= "LW1"}


def test_classes_are_found_where_they_were():
    for each in errors.CLASSES:
        assert pickle.loads(pickle.dumps(each)) is each
        assert each.__module__ == "lostwax.errors"


@pytest.mark.parametrize("error", errors.CLASSES, ids=lambda c: c.__name__)
def test_a_page_has_all_parts(error):
    page = read_page(error)
    assert page.cause
    assert page.fix
    assert bool(page.example) == bool(page.mended) == (error is not errors.LostwaxError)


def test_a_message_begins_with_the_code_once():
    inner = errors.DataDependentError("asked")
    assert str(inner) == inner.msg == "[LW0102] asked"
    assert str(errors.CaptureError(f"{inner}\n  note: caught")) == "[LW0101] asked\n  note: caught"
    assert str(errors.PassError(f"a pass: {inner}")) == "[LW0503] a pass: [LW0102] asked"


class Branches(torch.nn.Module):
    def forward(self, x):
        y = "ü" if x.sum() > 0 else "b"
        return x + len(y)


class Whole(torch.nn.Module):
    def forward(self, x):
        torch.manual_seed(0)
        return x


class Long(torch.nn.Module):
    def forward(self, x):
        return x * torch.rand(1, generator=torch.Generator().manual_seed(
            0))  # fmt: skip


def lines_of(module: torch.nn.Module) -> list[str]:
    with pytest.raises(errors.LostwaxError) as error:
        lostwax.export(module, (torch.ones(3),), control_flow="refuse")
    return str(error.value).splitlines()


def test_the_guilty_part_of_the_line_is_marked():
    _, line, marks, *_ = lines_of(Branches())
    start = line.index("x.sum() > 0")
    assert marks == " " * start + "^" * len("x.sum() > 0")


def test_a_line_that_is_guilty_as_a_whole_is_not_marked():
    assert not any("^" in line for line in lines_of(Whole()))


def test_what_goes_on_below_is_marked_to_the_end_of_the_line(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("    y = 'ü' + f(\n        x)\n")
    span = Span(str(file), 1, "f", 15, 2, 10)
    text = f"no.\n  at {file}:1 in f: y = 'ü' + f(\n  why: so"
    _, line, marks, _ = mark_span(text, span).splitlines()
    assert line[marks.index("^") :] == "f("
    assert marks.strip() == "^^"
    assert mark_span(mark_span(text, span), span) == mark_span(text, span)
    assert mark_span(text.replace(":1 in", ":2 in"), span).count("^") == 0


def test_an_error_can_be_sent_to_another_process():
    with pytest.raises(errors.CaptureError) as error:
        lostwax.export(Whole(), (torch.ones(3),))
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
