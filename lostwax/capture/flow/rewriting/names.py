"""The names of variables that rewritten code has beside the user's. All have a space in them, which
no name of Python's can have.
"""

from __future__ import annotations

RESULT, LEFT = "the result", "is left"
"""What the function returns; whether a `return` was met inside of a loop, a `with` or a `try`."""
PART, TRUTH, ITEMS, ITEM, INDEX, OPTION = (
    "part ", "truth ", "items of ", "item ", "index ", "option "
)  # fmt: skip
"""So begin the names of those that hold a part of an expression, whether it is true, what a
comprehension makes, and its variables, which element of something data pick, and which of several
things a variable is."""
HANDLED = "handled "
"""So begin the names of those that tell whether what a `try` raises was caught where it was
raised."""
RAISING, RAISED, LEAVING, TURN = "the raising", "raised ", "leaving ", "turn "
"""Which `raise` has ended a function, or 0; so begin the names of those that hold what was raised,
tell whether a loop was left by it, and of a loop that a `with` has become."""
MANAGER = "manager "
"""So begin the names of those that hold the manager of a `with` that raises."""
GENERATOR = "generator "
"""So begin the names of functions that generators have become."""
OVER, GOES_ON, ASKED = "what is gone over ", "goes on ", "is asked "
"""So begin the names of those that hold what a loop goes over that may not run; whether it goes on,
and whether it has to be asked."""
MOVED = "lines "
"""The names of functions into which a block is moved begin so."""
GIVE, GIVEN, LASTING, RETURNED = (
    "give to", "variables given", "variables given at last", "handed back "
)  # fmt: skip
"""The arguments of a function that gives what a generator yields (the third, where something is
done when the generator ends); so begin the names of those that
tell whether a loop over one was left by a `return`, and hold what that returns."""
_OF_HOOKS = ("choice ", "loop ", "over ", "error ", "given ", "lines ")
_SHOWN = {PART: "the value of the expression", ITEMS: "what the comprehension makes"}


def is_of_hooks(name: str) -> bool:
    """Is it used by hooks alone?"""
    return name.startswith(_OF_HOOKS)


def is_ours(name: str) -> bool:
    """Is what the variable holds none of the user's values?"""
    return " " in name and not name.startswith((PART, ITEMS, ITEM))


def show_name(name: str) -> str:
    """What to call a variable in an error."""
    shown = [text for kind, text in _SHOWN.items() if name.startswith(kind)]
    return shown[0] if shown else name.rpartition(" of ")[2] if name.startswith(ITEM) else name
