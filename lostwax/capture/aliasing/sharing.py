"""Tensors that may share memory, or be one, when eager runs them, and are two in a program.

What is asked of such a tensor, or written to it, depends on which way a call goes: it is refused.
Must not record.
"""

from __future__ import annotations

from lostwax.branches import MergeSite
from lostwax.capture.aliasing.attributes import MergedAttributes
from lostwax.capture.aliasing.ties import Ties
from lostwax.errors import CaptureError
from lostwax.ir.trace.views import IN_LOOP, Root


def refuse_merged(site: MergeSite | None, what: str, *, why: str, instead: str) -> CaptureError:
    """A refusal that knows in which `if` of Python's the two ways merge, if they do: a capture may
    let them go on apart."""
    error = CaptureError.here(what, why=why, instead=instead)
    error.joined = site  # type: ignore[attr-defined]
    return error


class TensorSharing:
    """The tensors of one capture that may share memory with others."""

    __slots__ = ("attributes", "maybe_shared", "merge_site_of", "ties")

    def __init__(self) -> None:
        self.maybe_shared: dict[Root, str] = {}
        """Tensors that may share memory with others when eager runs them, and why."""
        self.merge_site_of: dict[Root, MergeSite] = {}
        """In which `if` of Python's that is so."""
        self.ties = Ties()
        """Which of them may be the same tensor."""
        self.attributes = MergedAttributes()
        """The attributes that users have set on them."""

    def check_written(self, root: Root) -> None:
        """Refuse a write to a tensor that may share memory."""
        if root in self.maybe_shared:
            raise refuse_merged(
                self.merge_site_of.get(root),
                f"a tensor is written to, and {self.maybe_shared[root]} returns it as it is",
                why="eager's result would be that tensor, where it goes this way, and a write to "
                "one would show in the other; a program's result is a new tensor",
                instead="return a copy (x.clone()), or write to one",
            )

    def check_apart(self, one: Root, other: Root) -> None:
        """Check that two tensors are two in eager, too: Python asks whether they are one."""
        shared, is_handed = self.maybe_shared, IN_LOOP in (one.kind, other.kind)
        if one is not other and (is_handed or (one in shared and other in shared)):
            by = "a loop on data hands on" if is_handed else f"{shared[one]} returns"
            raise refuse_merged(
                self.merge_site_of.get(one) or self.merge_site_of.get(other),
                f"two tensors are asked to be the same one, and {by} one as it is",
                why="they are the same in eager, where it goes this way; a program's result is a "
                "new tensor",
                instead="keep in a variable which way was gone, is_new = True, and ask that",
            )

    def check_one(self, what: str, root: Root) -> None:
        """Check that something is asked of a tensor that is one object, whichever way a call
        goes."""
        is_handed = root.kind == IN_LOOP and what != "class"
        if not is_handed and (root not in self.maybe_shared or root.kind):  # what is given is one
            return
        by = "a loop on data hands on" if is_handed else f"{self.maybe_shared[root]} returns"
        others = [] if is_handed else [each.kind for each in self.ties.list_shown(root)]
        if what == "class" and "the parameter" not in others:
            return
        if what == "is_leaf" and not (is_handed or any(others)):
            return
        raise refuse_merged(
            self.merge_site_of.get(root),
            f"{what} was asked for of a tensor, and {by} one as it is",
            why="eager's result is that tensor, where it goes this way; a program's result is a "
            "new tensor",
            instead="keep in a variable which way was gone, is_new = True, and ask that",
        )
