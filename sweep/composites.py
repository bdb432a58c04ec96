"""Compares the nodes of programs with `keep="composite"` with torch.export's, for a few
architectures of timm and transformers.

    python -m sweep.composites [GPT2LMHeadModel ...]

Left out of the comparison: that ours are functional (`relu_` is `relu`), what nothing reads, and
what torch notes for itself (assertions of dtypes, copies of literals). Fails if others differ.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections import Counter
from typing import Any

import torch

import lostwax
from sweep.architectures import ARCHITECTURES, build, example
from sweep.libraries import load

NAMES = (
    *("convnext_atto", "vit_tiny_patch16_224", "mobilenetv3_small_050", "mixer_s32_224"),
    *("BertModel", "GPT2LMHeadModel", "DistilBertModel", "T5ForConditionalGeneration"),
)
NOTES = ("aten._assert_tensor_metadata", "aten.lift_fresh_copy", "aten.detach")


def count_nodes(graph: torch.fx.Graph) -> Counter[str]:
    """How often each operator is called, in its functional form, where the call is read."""
    targets = (str(node.target) for node in graph.nodes if node.op == "call_function")
    return Counter(t.replace("_.", ".") for t in targets if not t.startswith(NOTES))


def remove_unread(graph: torch.fx.Graph) -> None:
    writes = "_assert_tensor_metadata.default"
    graph.eliminate_dead_code(
        lambda node: node.is_impure() and not str(node.target).endswith(writes)
    )


def main() -> int:
    warnings.simplefilter("ignore")
    libraries = load()
    found = {each.name: each for each in ARCHITECTURES}
    failed = 0
    for name in sys.argv[1:] or NAMES:
        model: Any = build(found[name], *libraries).eval()
        args, kwargs = example(found[name])
        program = lostwax.export(model, args, kwargs, keep="composite")
        graph = copy.deepcopy(torch.export.export(model, args, kwargs).graph)
        remove_unread(graph)
        ours, theirs = count_nodes(program.graph), count_nodes(graph)
        print(name, sum(ours.values()), "more:", dict(ours - theirs), "fewer:", dict(theirs - ours))
        failed += ours != theirs
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
