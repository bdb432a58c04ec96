"""The architectures that have a tester in transformers' own tests, through our backend of
`transformers.exporters`. Their mixin makes the models and the inputs, and says what it skips.

`tests/exporters/test_export.py` compares values of torch.export's programs, of which one in twenty
may differ, names of ONNX's outputs, and the number of ExecuTorch's. Here all values are compared,
for the example call and, where sizes vary, for one with the batch doubled.
"""

from __future__ import annotations

import copy
import re
import signal
import sys
import traceback
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor

from lostwax.errors import InputValueError, LostwaxError
from sweep.compare import DiffersError, difference

WAYS = ("static", "dynamic", "generate", "generate dynamic", "pte", "onnx")
_CHECKED = {"dynamo": "values", "onnx": "names", "executorch": "count"}
"""What their tests compare of the programs of each backend."""
_FOUND = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


@dataclass
class Row:
    """What became of one class of models."""

    module: str
    name: str
    theirs: dict[str, str] = field(default_factory=dict)
    """By backend: what is compared, or that it is skipped."""
    ours: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Is no program wrong? (What eager cannot do, or was refused, is none.)"""
        return not any(word in ("wrong", "error") for word in self.ours.values())


def find_rows(
    folder: Path,
    only: Sequence[str] = (),
    ways: Sequence[str] = WAYS,
    *,
    limit: int = 100,
    first: bool = False,
    verbose: bool = False,
) -> Iterator[Row]:
    """The rows of all testers, as they are made. `folder` is transformers' `tests`, of about the
    commit of the package that is installed; `limit` are the seconds that a way may take; with
    `first` only the first class of models of each tester is tried, and the first that generates."""
    if not (folder / "exporters" / "test_export.py").exists():
        raise SystemExit(
            f"{folder} has no exporters/test_export.py: --tests takes the folder `tests` of "
            "transformers' repository, of the version that is installed"
        )
    sys.path.insert(0, str(folder.resolve().parent))
    sys.modules.pop("tests", None)  # ours has the same name
    for path in sorted(folder.glob("models/*/test_modeling_*.py")):
        name = path.parent.name
        if only and not any(text.lower() == name for text in only):
            continue
        try:
            module = import_leniently(f"tests.models.{name}.{path.stem}")
        except (Exception, unittest.SkipTest) as error:
            yield Row(name, "-", reasons={"import": shorten_error(error)})
            continue
        for case in find_cases(module):
            yield from sweep_case(name, case, ways, limit, first, verbose)


def import_leniently(name: str) -> Any:
    """Import a module of tests. What it imports of transformers and does not find, since the tests
    are of another version, is None, and libraries that are not there are stood in for: few of these
    are for the testers."""
    while True:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in ("transformers", "tests"):
                raise
            sys.modules[error.name] = MagicMock(__spec__=ModuleSpec(error.name, None))
        except ImportError as error:
            found = _FOUND.search(str(error))
            if found is None or not found[2].startswith("transformers"):
                raise
            setattr(import_module(found[2]), found[1], None)


def find_cases(module: Any) -> list[type[unittest.TestCase]]:
    """The classes of a module that test models of its own."""
    return [
        cls
        for cls in vars(module).values()
        if isinstance(cls, type)
        and issubclass(cls, unittest.TestCase)
        and cls.__module__ == module.__name__
        and hasattr(cls, "_prepare_export_model_and_inputs")
    ]


def sweep_case(
    module: str, cls: type[Any], ways: Sequence[str], limit: int, first: bool, verbose: bool
) -> Iterator[Row]:
    case = cls()
    try:
        case.setUp()
    except (Exception, unittest.SkipTest) as error:
        yield Row(module, cls.__name__, reasons={"setUp": shorten_error(error)})
        return
    generative = getattr(case, "all_generative_model_classes", None) or ()
    classes = list(case.all_model_classes or ())
    if first:
        classes = list(dict.fromkeys([*classes[:1], *generative[:1]]))
    for model_class in classes:
        row = Row(module, model_class.__name__, find_theirs(case, model_class))
        for way in ways:
            if way.startswith("generate") and model_class not in generative:
                row.ours[way] = "-"
                continue
            try:
                with give_up_after(limit):
                    row.ours[way] = compare(case, model_class, way)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                row.ours[way], row.reasons[way] = judge(error), shorten_error(error)
                if verbose:
                    traceback.print_exception(error)
        yield row


def find_theirs(case: Any, model_class: type[Any]) -> dict[str, str]:
    """What their tests do with this class, by backend."""
    try:
        case._skip_if_not_exportable()
    except unittest.SkipTest:
        return dict.fromkeys(_CHECKED, "skipped")
    found = {}
    for backend, checked in _CHECKED.items():
        skipped = [
            way
            for way, dynamic in (("static", False), ("dynamic", True))
            if case._should_skip(model_class, dynamic=dynamic, backend=backend)
        ]
        left = "skipped" if len(skipped) == 2 else f"{checked}, {''.join(skipped)} skipped"
        found[backend] = left if skipped else checked
    return found


class EagerError(Exception):
    """Their tester does not work here: eager fails itself."""


def judge(error: BaseException) -> str:
    chain, seen = [error], error
    while (seen := seen.__cause__ or seen.__context__) is not None:
        chain.append(seen)
    if isinstance(error, (EagerError, unittest.SkipTest)):
        return "eager"
    if isinstance(error, DiffersError):
        return "wrong"
    if any(isinstance(each, TimeoutError) for each in chain):
        return "time"
    return "refused" if any(isinstance(each, LostwaxError) for each in chain) else "error"


def compare(case: Any, model_class: type[Any], way: str) -> str:
    """Export a model in one way and compare it with eager. Raises what is wrong."""
    backend = import_module("lostwax.interop.transformers")
    containers = import_module("lostwax.interop.transformers.containers")
    dynamic = way.endswith("dynamic") or way == "onnx"
    if way == "pte":
        exporter, config = backend.LostwaxPteExporter(), backend.LostwaxPteConfig()
    elif way == "onnx":
        exporter, config = backend.LostwaxOnnxExporter(), backend.LostwaxOnnxConfig(dynamic=True)
    else:
        exporter, config = backend.LostwaxExporter(), backend.LostwaxConfig(dynamic=dynamic)
    if way.startswith("generate"):
        prepare = partial(
            case._prepare_export_generate_model_and_inputs, multi_token_decode=dynamic
        )
    else:
        prepare = case._prepare_export_model_and_inputs
    components = try_eager(lambda: prepare(model_class, device="cpu"))
    varies = False
    for name, (model, inputs) in components.items():
        # The exporter takes flags away, adds what it computes, and its caches drop no tokens.
        given = {name: containers.hold_all(v) for name, v in copy.deepcopy(inputs).items()}
        want = try_eager(lambda: run(model, given))  # noqa: B023 - called at once
        exported = exporter.export(model, inputs, config)
        check(name, run(exported, inputs), want)
        doubled, theirs = double_batch(inputs), double_batch(given)
        if dynamic and doubled is not None and theirs is not None:
            try:
                want = run(model, theirs)
            except Exception:
                continue  # the model, too, is for this batch
            try:
                got = run(exported, doubled)
            except InputValueError:  # the program says that it is for another
                continue
            check(f"{name}, batch doubled", got, want)
            varies = True
    return "ok, batch" if varies else "ok"


def try_eager(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (Exception, unittest.SkipTest) as error:
        raise EagerError(f"{type(error).__name__}: {error}") from error


def run(model: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
    import_module("transformers").set_seed(1234)
    utils = import_module("transformers.exporters.utils")
    with torch.no_grad():
        return utils.get_leaf_tensors(model(**copy.deepcopy(inputs)))  # type: ignore[no-any-return]


def check(what: str, got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    if list(got) != list(want):
        raise DiffersError(f"{what}: outputs {list(got)}, eager {list(want)}")
    for name, tensor in want.items():
        # strides are not compared: files have their own
        if text := difference(f"{what}, {name}", got[name].contiguous(), tensor.contiguous()):
            raise DiffersError(text)


def double_batch(inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The inputs with everything twice; None if there is more to it than tensors of one batch."""
    sizes = {v.shape[0] if v.ndim else 0 for v in inputs.values() if isinstance(v, Tensor)}
    plain = all(isinstance(v, (Tensor, bool, str, type(None))) for v in inputs.values())
    if len(sizes) != 1 or sizes == {0} or not plain:
        return None
    return {n: torch.cat([v, v]) if isinstance(v, Tensor) else v for n, v in inputs.items()}


@contextmanager
def give_up_after(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def shorten_error(error: BaseException) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, LostwaxError):
        cause = cause.__cause__
    lines = str(cause).strip().splitlines() or [""]
    at = [line.strip() for line in lines if line.strip().startswith(("at ", "asked at "))]
    return " ".join([f"{type(cause).__name__}: {lines[0]}", *at[:1]])[:400]


def line(row: Row, ways: Sequence[str], markdown: bool) -> str:
    theirs = [row.theirs.get(backend, "-") for backend in _CHECKED]
    ours = [row.ours.get(way, "-") for way in ways]
    if markdown:
        return f"| `{row.name}` | {' | '.join((*theirs, *ours))} |"
    words = [f"{text:<24}" for text in theirs] + [f"{text:<11}" for text in ours]
    return f"{row.module:<24}{row.name:<48}{''.join(words)}".rstrip()
