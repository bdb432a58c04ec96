"""What is refused today, by the first words of the reason. A program that is captured leaves this
list: the test says so."""

from __future__ import annotations

_BY_REASON = {
    "a tensor is written to, and the body of `while parent[i] != i:` returns it as it": (
        "union_find"
    ),
    "the module returns a list to which a loop appends": (
        "ctc_greedy_to_a_list run_length_encoding_to_lists voice_activity filter_anchors_one_by_one"
    ),
}
REFUSED = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
