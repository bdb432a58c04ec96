"""What an export is asked for, as a text: programs of equal texts may be one.

Only what is seen before the module runs: the classes of its modules, the types of the example's
tensors, the options, how torch is set, versions. Must not read weights.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax.cache import cached
from lostwax.capture.attempt import Attempt
from lostwax.capture.example_call import leaves_of
from lostwax.capture.heap.functions import unwrap
from lostwax.capture.request import Request
from lostwax.capture.shapes.constants import DeclaredConstant
from lostwax.capture.shapes.spec import Spec
from lostwax.capture.state.root_module import find_root_module, forward_of
from lostwax.capture.surroundings.tensor_places import data_of
from lostwax.capture.trace.single_step_composites import AllComposites
from lostwax.classes import TENSORS
from lostwax.export_cache.facts import TensorNumbers, spell_type
from lostwax.export_cache.patches import list_patches
from lostwax.export_cache.spelling import NoTextError, spell, spell_class
from lostwax.ir.run.conditions.settings import settings_now
from lostwax.location import user_location
from lostwax.undo.thread_state import take_state


def find_objection(request: Request, attempt: Attempt) -> str:
    """Why no program of this request is kept; "" if it may be."""
    if request.strict:
        return "a strict export has to see what the module does"
    if request.tell_exporting == "compare":
        return 'tell_exporting="compare" computes with the values of the example'
    if attempt.spec is not None and attempt.spec.check_more_calls is not None:
        return "it is checked against further calls"
    if any(_is_made_of_tensors(each) for each in leaves_of(request.args, request.kwargs)):
        return "an input is a tensor that is made of others"
    state = take_state()
    if state.modes or state.function_modes or state.transforms:
        return "a mode or a transform of torch is active"
    return ""


def _is_made_of_tensors(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and type(leaf) not in TENSORS


def make_key(request: Request, attempt: Attempt) -> str:
    """Equal for equal requests, in every process. Raises `NoTextError`."""
    found = hashlib.blake2b(digest_size=20)
    for part in _list_parts(request, attempt):
        found.update(f"{part}\n".encode())
    return found.hexdigest()


def _list_parts(request: Request, attempt: Attempt) -> Iterator[str]:
    yield read_versions()
    yield from _spell_subject(request)
    yield from _spell_call(request)
    is_all = isinstance(request.keep, AllComposites)
    keep = "all" if is_all else sorted(map(str, request.keep))  # type: ignore[arg-type]
    yield repr((keep, tuple(request.preserved), request.control_flow))
    yield repr((request.defers, request.tell_exporting))
    yield from _spell_spec(attempt.spec)
    for i, declared in attempt.declared.items():
        yield _spell_declared(i, declared)
    yield repr((settings_now(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    yield repr((read_flags(), _read_rank()))
    yield from list_patches()


@cached()
def read_versions() -> str:
    """Of Python, torch and lostwax. That of lostwax is when each of its files was written: a
    version in development has many."""
    files = sorted(_list_files(str(Path(__file__).parent.parent), ""))
    own = hashlib.blake2b(repr(files).encode(), digest_size=16)
    torchs = torch.__version__, torch.version.git_version
    return repr((sys.version, sys.byteorder, *map(str, torchs), own.hexdigest()))


def _list_files(folder: str, path: str) -> Iterator[tuple[str, int, int]]:
    for each in os.scandir(folder):
        if each.is_dir():
            yield from _list_files(each.path, f"{path}/{each.name}")
        elif each.name.endswith(".py"):
            yield f"{path}/{each.name}", each.stat().st_size, each.stat().st_mtime_ns


def read_flags() -> tuple[Any, ...]:
    """Settings of torch by which its functions choose operators."""
    cuda: Any = torch.backends.cuda
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.enabled,
        torch.backends.mha.get_fastpath_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        torch.__future__.get_swap_module_params_on_conversion(),
    )


def _read_rank() -> Any:
    """Which of the processes of a job this is: code may ask it."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size(), distributed.get_backend()


def _spell_subject(request: Request) -> Iterator[str]:
    """The module or function; of modules the classes, by path."""
    subject, root = request.mod, find_root_module(request.mod)
    forward = unwrap(forward_of(subject))
    yield spell(forward) if isinstance(forward, FunctionType) else spell_class(type(forward))
    if type(root) is not nn.Module:
        for path, module in root.named_modules(remove_duplicate=False):
            yield f"{path} {spell_class(type(module))} {module.training}"


def _spell_call(request: Request) -> Iterator[str]:
    leaves, tree = pytree.tree_flatten((request.args, request.kwargs))
    yield _spell_tree(tree)
    numbers = TensorNumbers()
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield f"{spell_type(leaf)} {numbers.of(leaf)} {leaf._is_view()}"
        else:
            yield spell(leaf)


def _spell_tree(tree: Any) -> str:
    if tree.type is None:
        return "*"
    children = ",".join(map(_spell_tree, tree.children()))
    return f"{spell_class(tree.type)} {_spell_context(tree.context)}({children})"


def _spell_context(context: Any) -> str:
    """What a container is beside its children: the keys of a dict."""
    if type(context) in (list, tuple):
        return f"[{','.join(map(_spell_context, context))}]"
    if type(context) is dict:
        return _spell_context([*context.items()])
    return spell(context)


def _spell_spec(spec: Spec | None) -> Iterator[str]:
    """What varies."""
    if spec is None:
        return
    yield repr((spec.paths, spec.defers, spec.constraints))
    if spec.constraints:  # their guards tell of the line that exports
        yield str(user_location())
    for leaf in spec.leaves:
        entries: Iterable[Any] = leaf if isinstance(leaf, tuple) else (leaf,)
        yield ", ".join([f"{type(each).__name__} {each!r}" for each in entries])
    for name, dim in spec.named_dims.items():
        yield repr((name, dim.dim, dim.value, dim.min, dim.max))


def _spell_declared(index: int, declared: DeclaredConstant) -> str:
    if not (data := data_of(declared.known)) and declared.known.numel():
        raise NoTextError(f"the constant {declared.path}")
    return f"{index} {spell_type(declared.value)} {hashlib.blake2b(data).hexdigest()}"
