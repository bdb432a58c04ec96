"""What of these is refused today, by how the error begins."""

from __future__ import annotations

REFUSED_IDIOMS: dict[str, str] = {
    **dict.fromkeys(
        "pooled bits_as_text".split(),
        "a concrete integer is needed",
    ),
    **dict.fromkeys(
        ("Maml inner_loop_by_autograd ").split(),
        "the two sides of an `if` on data do not agree",
    ),
    "sum_from_zero_returned": "a tensor is written to, and the False side of",
    "list_of_kept": "the module returns a list to which a loop appends",
    **dict.fromkeys(
        ("divide_or_zero cholesky_or_diagonal ").split(),
        "data decide whether this raises",
    ),
    **dict.fromkeys(
        "CausalMaskPerSize out_by_its_index".split(),
        "a declared dimension cannot vary as declared",
    ),
}
