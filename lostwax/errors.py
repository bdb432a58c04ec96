"""Every exception lostwax raises. The docstring of a class is its help page.

Layer 0: imports nothing of the house. An error says what was refused, where in the user's code,
why, and what to write instead; it carries the values it speaks of.
"""

from __future__ import annotations


class LostwaxError(Exception):
    """The root of every error that lostwax raises on purpose."""


class DataDependentError(LostwaxError, RuntimeError):
    """A question whose answer lies in the data of a tensor that has none.

    Fake tensors know sizes, not values. `x.item()`, `x.nonzero()` and boolean masks give *unbacked*
    symbols: integers without an example value. A Python branch on one cannot be decided while
    tracing.

    What to do: state what you know before the line that asks, with `torch._check(n > 0)`; or
    compute with tensors (`torch.where`) instead of branching.
    """


class ContradictionError(LostwaxError, RuntimeError):
    """Two facts about sizes exclude each other: no input can satisfy both.

    What to do: look at the guards named in the message; one of the `torch._check` or declared
    ranges is too narrow.
    """


class ParseError(LostwaxError, ValueError):
    """A text that was to be an integer expression is not one. The message shows the text and the
    position.

    `text` is the whole text, `position` the index of the character where reading stopped.
    """

    def __init__(self, message: str, text: str = "", position: int = 0) -> None:
        self.text, self.position = text, position
        start = max(0, position - 50)
        scene = "".join(c if c.isprintable() else " " for c in text[start : position + 30])
        caret = " " * (position - start) + "^"
        super().__init__(f"{message}\n  {scene}\n  {caret}" if text else message)


class UnsupportedFakeError(LostwaxError, RuntimeError):
    """An operation that needs a tensor's data, storage or layout in a way fakes cannot offer."""


class NonFakeInputError(LostwaxError, RuntimeError):
    """A real tensor met an operator under a FakeTensorMode that does not convert real tensors by
    itself.

    What to do: convert it first, `mode.from_tensor(x)`; or build the mode with
    `FakeTensorMode(allow_non_fake_inputs=True)`.
    """


class MixedModeError(LostwaxError, RuntimeError):
    """Fake tensors of two different FakeTensorModes met in one operator.

    What to do: make all of them under one mode; `mode.from_tensor(other)` makes a fake of a fake.
    """


class MissingFakeRuleError(LostwaxError, RuntimeError):
    """Nothing is known of what an operator returns: no rule, no `register_fake`, no decomposition,
    no meta kernel.

    What to do: register one with `torch.library.register_fake("ns::op")`.
    """
