"""What is refused today, by the first words of the reason. A program that is captured leaves this
list: the test says so."""

from __future__ import annotations

_BY_REASON = {
    "a concrete integer is needed": "gaussian_elimination sum_of_chunks",
    "keep gets longer in a loop that is a `while`": "nms_shrinking",
    "a tensor is written to, and the body of `while parent[i] != i:` returns it as it": (
        "union_find"
    ),
    "ids, which `while True:` hands on, changes": ("GreedyGrowing"),
    "image, which `while image.shape[-1] > 1:` hands on, changes": ("pyramid_until_smooth"),
    "the two sides of an `if` on data do not agree: changed is": "Hopfield",
    "the two sides of an `if` on data do not agree: k is": ("quickselect_median"),
    "the two sides of an `if` on data do not agree: out has": ("ctc_greedy_to_a_list"),
    "the two sides of an `if` on data do not agree: runs has": ("run_length_encoding_to_lists"),
    "the two sides of an `if` on data do not agree: seen has": ("unique_in_order"),
    "the two sides of an `if` on data do not agree: segments has": ("voice_activity"),
    "the two sides of an `if` on data do not agree: state is": ("tokenise_with_states"),
    "the two sides of an `if` on data do not agree: stats is": ("running_statistics"),
    "the two sides of an `if` on data do not agree: the result[0] is": ("orbit_escapes"),
    "the two sides of an `if` on data do not agree: what the comprehension makes has": (
        "filter_anchors_one_by_one"
    ),
    "x, which `while len(x) < length:` hands on, changes": ("pad_row_by_row"),
    "x, which `while residual > 1e-3:` hands on, lies otherwise in memory": (
        "newton_schulz_inverse"
    ),
}
REFUSED = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
