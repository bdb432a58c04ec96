"""All that a capture changes in torch and in Python while it runs, and one function that does it.

| what | how | file |
|---|---|---|
| `torch.compile`, `_assert`, seeds, `set_default_dtype`, `func.linearize`; what libraries ask (`is_exporting`); checkpoints; imports | code of functions | `torch_functions` |
| how DTensor finds the types of whole results, and chooses placements | code, where it is imported | `sharded/placements` |
| what was compiled before | class of dynamo's stance | `torch_functions` |
| `autograd.Function.apply` | code; where it is C, how its class answers | `autograd_function` |
| settings of `torch.backends`, determinism, precision, the default device | class of `torch._C`; code | `backends` |
| `torch.autocast` | code; class of the module | `autocasting` |
| `TransformerEncoder.forward`, `_BatchNorm.forward`; `pack_padded_sequence`, `pad_packed_sequence`, recurrent modules of what was packed | code | `nn_modules` |
| `torch.tensor`, `as_tensor`, `linspace`, `F.one_hot`, `torch.div(7, 2)`, `math.sqrt` and their like; `F.binary_cross_entropy` of torch 2.11 | class of the module; globals of the user's; code | `symbolic_arguments` |
| `max` and `min` in the user's functions | globals of theirs, that answer otherwise of symbolic integers alone | `symbolic_arguments` |
| `F.conv1d` to `conv3d`, `torch.batch_norm`, `layer_norm`, `group_norm` | class of the module | `fast_calls` |
| `torch.is_grad_enabled` and others that tell of a mode | class of the module; globals of the user's; code | `modes` |
| `torch.Tensor.stride(x)`, `torch.is_inference(x)` | attributes of the class, where the user's functions name them; class of the module | `unbound` |
| `type(x)` in the user's functions | a global of theirs, that answers otherwise of fakes alone | `classes` |
| `isinstance`, `hasattr` and `getattr` in the user's functions, where data decide what they do | globals of theirs, that refuse some fakes | `classes` |
| `operator.is_`, `is_not`, `torch.is_tensor` | class of the module; globals of the user's | `classes` |
| `torch.cond` and its like, and calls of those operators | code | `control_flow` |
| the truth of NotImplemented | a filter of warnings, that sees it asked | `python/identities` |
| Python's and numpy's generators | a copy for this thread | `random_numbers` |

All of it holds for the capturing thread alone, and is put back by `Undo`, also when interrupted.
The module's own state is the business of `module_state.py`. Must not do anything itself.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from lostwax.capture import threads
from lostwax.capture.heap.reach import Reach
from lostwax.capture.patches import (
    autocasting,
    autograd_function,
    backends,
    classes,
    control_flow,
    fast_calls,
    modes,
    nn_modules,
    random_numbers,
    swap,
    symbolic_arguments,
    torch_functions,
    unbound,
)
from lostwax.capture.patches.held import StandIns
from lostwax.capture.python.functions_run import find_watcher
from lostwax.capture.python.identities import watch_truths
from lostwax.capture.trace.tracer import Tracer
from lostwax.undo.undo import Undo

CODE_SWAPS = swap.CodeSwaps(
    [
        *torch_functions.CODE_SWAPS,
        *autocasting.CODE_SWAPS,
        *backends.CODE_SWAPS,
        *modes.CODE_SWAPS,
        *autograd_function.CODE_SWAPS,
        *symbolic_arguments.CODE_SWAPS,
        *control_flow.CODE_SWAPS,
        nn_modules.ENCODER,
        *nn_modules.PACKING,
    ]
)
_AVERAGES = swap.CodeSwaps([nn_modules.NORM])
_SHOWING = (symbolic_arguments, classes, fast_calls, autocasting, backends, modes, unbound)
_STAND_INS = {**classes.STAND_INS, **symbolic_arguments.STAND_INS, **modes.STAND_INS}
CLASSES = swap.make_classes([each for where in _SHOWING for each in where.NAME_SWAPS])


def apply(tracer: Tracer, reach: Reach, modules: Sequence[nn.Module], undo: Undo) -> None:
    """From here on this thread captures a call of these modules that may run these functions."""
    threads.begin_capture(tracer, undo)
    autograd_function.begin(tracer, undo)
    tracer.higher_order = control_flow.HIGHER_ORDER
    CODE_SWAPS.apply(undo)
    if nn_modules.has_averages(modules):
        _AVERAGES.apply(undo)
    swap.set_classes([*CLASSES, *torch_functions.stances()], undo)
    stand_ins = _STAND_INS
    if find_watcher() is not None:
        stand_ins = {**_STAND_INS, **classes.OF_FLOW}
        classes.let_trees_ask(undo)
    StandIns(stand_ins, reach, undo)
    classes.show_classes(reach, undo)
    modes.begin(tracer)
    unbound.show(reach, undo)
    random_numbers.separate_generators(undo)
    watch_truths(undo)
    reach.begin(undo)
