"""Functions of torch that do what a capture needs while it runs: compiling gives the function
itself, assertions on data are left to the running program, and seeds to its caller.

torch's own wrappers of control flow would compile themselves before they call the operator; while a
capture runs they call it at once, and the tracer meets it. Must not import what compiles.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
import torch.utils.checkpoint
from torch._higher_order_ops import utils as torch_wrappers

from lostwax.capture import threads
from lostwax.capture.aliasing.sharing import refuse_merged
from lostwax.capture.heap import reach
from lostwax.capture.patches.swap import CodeSwap
from lostwax.capture.python import told_exporting
from lostwax.capture.trace import refusals
from lostwax.capture.trace.grad_marks import NeedsAutograd
from lostwax.capture.trace.gradient_reach import find_join_between
from lostwax.errors import LostwaxError
from lostwax.fake.asked_tensor import read_gradient
from lostwax.fake.data import assert_data
from lostwax.fake.tensor import FakeTensor
from lostwax.location import user_location
from lostwax.sym.undecided import refuse_caught


def _call_operator(plain: Any, fn: Any, args: Any, kwargs: Any = None) -> Any:
    """A control-flow operator that torch would compile first: so it reaches the tracer."""
    return fn(*args, **(kwargs or {}))


def _leave_uncompiled(plain: Any, model: Any = None, **options: Any) -> Any:
    """`torch.compile` gives the function itself."""
    return model if model is not None else lambda function: function


def _record_assertion(plain: Any, condition: Any, message: str) -> None:
    """`torch._assert`: of data it is a step of the program."""
    if isinstance(condition, torch.Tensor):
        refuse_caught(AssertionError)
        assert_data(condition, message)
    elif isinstance(condition, torch.SymBool):
        torch._check_with(AssertionError, condition, lambda: message)
    else:
        assert condition, message


def _refuse_seed(plain: Any, *args: Any, **kwargs: Any) -> None:
    """`torch.manual_seed`, `torch.seed` and `torch.initial_seed`."""
    refusals.refuse_generator()


def _set_default_dtype(plain: Any, d: Any) -> None:
    """`torch.set_default_dtype`: the operators of a program have no other default than its caller
    has."""
    if d is not torch.get_default_dtype():
        refusals.refuse_default(d)


def _refuse_linearize(plain: Any, func: Any, *primals: Any) -> Any:
    """`torch.func.linearize` traces by itself."""
    refusals.refuse_linearize()


def _refuse_jiterator(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """What `torch.cuda.jiterator` makes of source code."""
    refusals.refuse_jiterator()


def _is_declared_causal(plain: Any, mask: Any, is_causal: Any = None, size: Any = None) -> bool:
    """A hint that lets eager leave a mask away; without it the mask is used, and computes the same.
    To find out would need the mask's data."""
    return is_causal is True


def _set_rng_state(plain: Any, new_state: Any, *device: Any) -> None:
    """`torch.set_rng_state`, which `fork_rng` ends with. A checkpoint that is computed once more
    may call it: nothing is drawn while capturing."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            plain(new_state, *device)
            return
    refusals.refuse_generator()


def _tell_exporting(plain: Any) -> bool:
    """`torch.compiler.is_exporting()` and `is_compiling()`: libraries ask."""
    return told_exporting.answer(threads.running[-1], plain.__name__)


def _no(plain: Any) -> bool:
    """`torch.backends.mha.get_fastpath_enabled()`: attention and transformer layers have kernels of
    their own for some devices; a program goes the common way."""
    return False


def _keep_saved(plain: Any, hooks: Any, *error: Any) -> Any:
    """Entering and leaving `saved_tensors_hooks`. Those of a checkpoint would forget what autograd
    saves, and compute it again, with other random numbers: autograd keeps it."""
    return None if isinstance(hooks, _FORGETTING) else plain(hooks, *error)


def _run_backward(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Autograd is to go back from a result. Where it has not seen the operators, it may fail."""
    tracer = threads.running[-1]
    _check_joins(tracer, args[0], args[4] if len(args) > 4 else kwargs.get("inputs"))
    if kwargs.get("accumulate_grad"):
        _note_leaves(tracer, args[0])
    try:
        return plain(*args, **kwargs)
    except RuntimeError as error:
        if tracer.tracked or isinstance(error, LostwaxError):
            raise
        raise NeedsAutograd(*error.args) from error


def _note_leaves(tracer: Any, outputs: Any) -> None:
    """Leaves get a gradient on this line. Those that have none must be of the side or the body that
    goes back. (To a gradient that there is, it is added: that is a write.)"""
    here = user_location()
    left = [_made_by.__get__(each) for each in outputs if type(each) is FakeTensor]
    seen = set[Any]()
    while left:
        made_by = left.pop()
        if made_by is None or made_by in seen:
            continue
        seen.add(made_by)
        left += [each for each, _ in made_by.next_functions]
        leaf = getattr(made_by, "variable", None)
        if type(leaf) is not FakeTensor or leaf.tracked is None:
            continue
        tracer.gradients.given[leaf] = here
        if tracer.scope is not None and read_gradient(leaf) is None:
            tracer.scope.check_own_marks(leaf)


def _check_joins(tracer: Any, outputs: Any, inputs: Any) -> None:
    """Autograd sees no branch and no loop of the program's: it would take what they compute for
    constants."""
    ends = {tracer.value_of(each) for each in inputs or () if type(each) is FakeTensor}
    for each in outputs if tracer.tracked else ():
        join = find_join_between(tracer.value_of(each), ends) if type(each) is FakeTensor else None
        if join is not None:
            raise refuse_merged(
                tracer.sharing.merge_site_of.get(join.fake.tracked.root),
                "gradients are taken of what a branch or a loop on data computes",
                why="which operators they go back through is known only when the program runs",
                instead="take them on each side, where it is computed; or compute both and choose, "
                "torch.where(condition, a, b)",
            )


def _get_context(plain: Any) -> Any:
    """`torch.library.get_ctx()` in a fake kernel of the user's."""
    contexts = threads.running[-1].contexts
    return contexts[-1] if contexts else plain()


def _import_outside(plain: Any, *args: Any) -> Any:
    """A module that is imported for the first time, in the middle of a capture, is no part of it:
    what it keeps of torch's functions, and the tensors that it makes, are real. Of its functions,
    and of those of modules that it loads, those that run are."""
    if str(args[0]).startswith(_OWN):
        return threads.call_outside(plain, *args)
    before = frozenset(sys.modules)
    found = threads.call_outside(plain, *args)
    reach.follow([sys.modules[name] for name in sys.modules.keys() - before])
    return found


def _import_by_name(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """`importlib.import_module`: which module it loads is known only now."""
    found = plain(*args, **kwargs)
    reach.follow([found])
    return found


def _device_functions(*names: str) -> list[Any]:
    """The functions of these names that there are for generators of devices, and for all of them;
    they are there without the device, too."""
    homes: tuple[Any, ...] = (torch.cuda.random, torch.xpu.random, torch.mps)
    known = [name for each in names for name in (each, f"{each}_all")]
    return [getattr(home, name) for home in homes for name in known if hasattr(home, name)]


_OWN = ("lostwax.", "torch.")
_Hooks: Any = torch.autograd.graph.saved_tensors_hooks
_made_by: Any = torch.Tensor.grad_fn
_FORGETTING: Any = torch.utils.checkpoint._checkpoint_hook
_importlib: Any = importlib
_causal: Any = torch.nn.modules.transformer._detect_is_causal_mask
_wrapper: Any = getattr(torch_wrappers, "_hop_compile_and_call", None)

CODE_SWAPS: list[CodeSwap] = [
    CodeSwap(torch.compile, _leave_uncompiled),
    CodeSwap(torch._assert, _record_assertion),
    CodeSwap(torch.random.manual_seed, _refuse_seed),
    CodeSwap(torch.random.seed, _refuse_seed),
    CodeSwap(torch.random.initial_seed, _refuse_seed),
    CodeSwap(torch.random.set_rng_state, _set_rng_state),
    *(CodeSwap(f, _refuse_seed) for f in _device_functions("manual_seed", "seed", "initial_seed")),
    *(CodeSwap(function, _set_rng_state) for function in _device_functions("set_rng_state")),
    CodeSwap(torch.set_default_dtype, _set_default_dtype),
    CodeSwap(torch.func.linearize, _refuse_linearize),
    CodeSwap(torch.compiler.is_exporting, _tell_exporting),
    CodeSwap(torch.compiler.is_compiling, _tell_exporting),
    CodeSwap(torch.backends.mha.get_fastpath_enabled, _no),
    CodeSwap(_causal, _is_declared_causal),
    CodeSwap(torch.cuda.jiterator._JittedFunction.__call__, _refuse_jiterator),
    CodeSwap(torch.library.get_ctx, _get_context),
    CodeSwap(torch.autograd.graph._engine_run_backward, _run_backward),
    CodeSwap(_Hooks.__enter__, _keep_saved),
    CodeSwap(_Hooks.__exit__, _keep_saved),
    CodeSwap(_importlib._bootstrap._find_and_load, _import_outside),
    CodeSwap(importlib.import_module, _import_by_name),
    *([] if _wrapper is None else [CodeSwap(_wrapper, _call_operator)]),
]


# --------------------------------------------------------------- what was compiled before a capture


def stances() -> list[tuple[Any, type]]:
    """What was compiled runs as written: `torch.compiler.set_stance("force_eager")`, for this
    thread. Nothing is compiled where dynamo is not imported, or not yet to the end."""
    stance = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
    if stance is None:
        return []
    cls = type(stance)
    if cls not in _FORCING.values():
        if cls not in _FORCING:
            names = {"stance": property(_get_stance, _set_stance)}
            _FORCING[cls] = type(cls.__name__, (cls,), names)
        cls = _FORCING[cls]
    return [(stance, cls)]


def _get_stance(held: Any) -> Any:
    return "force_eager" if threads.is_capturing() else held.__dict__["stance"]


def _set_stance(held: Any, value: Any) -> None:
    held.__dict__["stance"] = value


_FORCING: dict[type, type] = {}
"""For the class of a stance, another that asks for the thread."""
