"""All architectures of a transformers source tree that have a tester, exported by `lostwax.export`.

    python -m sweep.models --tests ../transformers/tests [--only llama t5 ...] [--first]
                           [--ways eval train batch length] [--jobs 2] [--limit 60]
                           [--part 2/8] [--device cuda] [--out rows.jsonl]

Each tester makes a small configuration and inputs; each of its model classes is exported for
evaluation, for training, with a batch that varies, and with lengths of texts that vary, and
compared with eager (`compare.py`): results, buffers, gradients; where sizes vary, at other sizes,
too. For each way the table has "ok" ("ok, constants": inputs of integers, the grids of images, are
declared to be constants; "ok, sizes": with `control_flow="sizes"`; "ok, range": for a range that
the refusal suggests, or for 1024 at most, in which all sizes are that are compared; "ok, relation":
the same of a relation of sizes; "ok, called": after one call of the module, as the refusal says;
"ok, eager": code is told that nothing is exported), "refused", "wrong", "error" (no refusal of
ours), "time", "eager" (that fails itself), or "-" (there is nothing that varies, or eager takes
none of the other sizes). At the end it counts them, lengths of models that are given texts alone
once more, and lists the kinds of the refusals, the most frequent first. A row also keeps why each
attempt was refused (`tried`).

A row is written to `--out` as soon as it is made, and what is there is not made again. Each tester
runs in a process of its own, as many at once as `--jobs`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from lostwax import Dim, export, refine_dynamic_shapes_from_suggested_fixes
from lostwax.errors import ConstraintViolationError, InputValueError, LostwaxError
from sweep.compare import DiffersError, Run, check, run, run_noisy
from sweep.dynamic import aligned
from sweep.libraries import import_torchvision, register_caches
from sweep.testers import EagerError, give_up_after, import_leniently, judge, shorten_error

WAYS = ("eval", "train", "batch", "length")
_MOST_CONSTANT = 4096
_MOST_FIXES, _MANY = 3, 1024
_TEXTS = ("ids", "mask", "embeds", "encoder_hidden_states")
_SIDES = ("decoder", "encoder")
_NO_TEXT = re.compile("pixel|image|video|audio|visual|patches|input_values|features|spectro|speech")
_MOST_ROWS = 16
NOTHING: Mapping[str, Any] = {}


@dataclass
class Row:
    """What became of one class of models."""

    module: str
    name: str
    found: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    inputs: list[str] = field(default_factory=list)
    tried: dict[str, dict[str, str]] = field(default_factory=dict)
    """By way: why each attempt was refused."""

    @property
    def is_text(self) -> bool:
        """Is it given texts, and neither images nor sound?"""
        return not any(map(_NO_TEXT.search, self.inputs))


@dataclass
class Example:
    """A model and a call of it."""

    model: nn.Module
    kwargs: dict[str, Any]
    told: list[str] = field(default_factory=list)
    """What refusals have told."""

    @property
    def batch(self) -> int:
        first = next(t for t in self.tensors() if t.ndim)
        return first.shape[0]

    def tensors(self) -> list[Tensor]:
        return [t for t in pytree.tree_leaves(self.kwargs) if isinstance(t, Tensor)]

    def lengths(self) -> dict[str, str]:
        """The inputs whose second size is that of a text, each with the name of its Dim."""
        found: dict[str, tuple[str, int]] = {}
        for name, value in self.kwargs.items():
            if isinstance(value, Tensor) and value.ndim > 1 and name.endswith(_TEXTS):
                side = next((f"{s}_length" for s in _SIDES if name.startswith(s)), "length")
                others = {size for each, size in found.values() if each == side}
                if others <= {value.shape[1]}:  # else it is an input of another length
                    found[name] = (side, value.shape[1])
        return {name: side for name, (side, _) in found.items()}

    def lengthen(self) -> Example:
        """An example for texts of any length: none of one token, of which modules ask."""
        longer = Example(self.model, next(texts(self)))
        is_short = any(self.kwargs[name].shape[1] == 1 for name in self.lengths())
        return longer if is_short and is_taken(self, longer.kwargs) else self


# --------------------------------------------------------------------------------- one class


def sweep_class(case: Any, model_class: type[Any], row: Row, options: argparse.Namespace) -> None:
    for way in options.ways:
        try:
            with give_up_after(options.limit):
                row.found[way] = sweep_way(case, model_class, way, row, options.device)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            row.found[way], row.reasons[way] = judge(error), shorten_error(error)
            if os.environ.get("SWEEP_TRACEBACK"):
                traceback.print_exception(error)


def sweep_way(case: Any, model_class: type[Any], way: str, row: Row, device: str) -> str:
    example = make_example(case, model_class, way == "train", device)
    row.inputs = list(example.kwargs)
    if way == "length":
        example = example.lengthen()
    try:
        return compare_way(example, way, row)
    except LostwaxError as refusal:
        row.tried.setdefault(way, {}).setdefault("ok", shorten_error(refusal))
        texts = [str(refusal), *getattr(refusal, "__notes__", [])]
        if not any("call the module once" in text for text in (*texts, *example.told)):
            raise
    with torch.no_grad():
        try_eager(lambda: example.model(**copy.deepcopy(example.kwargs)))
    compare_way(example, way, row)
    return "ok, called"


def compare_way(example: Example, way: str, row: Row) -> str:
    if way in ("eval", "train"):
        return compare_example(example)
    shapes = varying_batch(example) if way == "batch" else varying_lengths(example)
    if shapes is None:
        return "-"
    want = run_eager(example, example.kwargs)
    sizes = batches(example) if way == "batch" else texts(example)
    others = [each for each in sizes if is_taken(example, each)]
    if not others:
        return "-"
    tried = row.tried.setdefault(way, {})
    program, word = export_varying(example, shapes, others, tried)
    compare(example, program, example.kwargs, want)
    for each in others:
        compare_other(example, program, each)
    return word


def make_example(case: Any, model_class: type[Any], training: bool, device: str) -> Example:
    def make() -> Example:
        common = import_module("tests.test_modeling_common")
        torch.manual_seed(0)
        tester = case.model_tester
        prepare = getattr(tester, "prepare_config_and_inputs_for_model_class", None)
        if prepare is not None:
            config, inputs = prepare(model_class)
        else:
            config, inputs = tester.prepare_config_and_inputs_for_common()
        inputs = case._prepare_for_class(inputs, model_class)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        text.use_cache = False
        common.set_config_for_less_flaky_test(config)
        model = model_class(config).train(training)
        common.set_model_for_less_flaky_test(model)
        inputs = set_apart({k: v for k, v in inputs.items() if v is not None})
        moved = pytree.tree_map_only(Tensor, lambda t: t.to(device), inputs)
        return Example(model.to(device), moved)

    return try_eager(make)


def set_apart(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs, each a tensor of its own: testers give one mask twice, for texts of two
    lengths."""
    return {n: v.clone() if isinstance(v, Tensor) else v for n, v in inputs.items()}


def try_eager(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (Exception, unittest.SkipTest) as error:
        raise EagerError(f"{type(error).__name__}: {error}") from error


def run_eager(example: Example, kwargs: dict[str, Any]) -> Run:
    """What the module does. A buffer that the call makes is a cache, which programs do without:
    what would be another in the next call, an export refuses."""
    found: Run = try_eager(lambda: run(copy.deepcopy(example.model), (), kwargs))
    had = {name for name, _ in example.model.named_buffers()}
    found.buffers = {name: buffer for name, buffer in found.buffers.items() if name in had}
    return found


def compare_example(example: Example) -> str:
    want = run_eager(example, example.kwargs)
    try:
        program = export(example.model, (), example.kwargs)
        word = "ok" if program.settings is None or program.settings.exporting else "ok, eager"
    except LostwaxError:
        constants = small_integers(example)
        if not constants:
            raise
        try:
            program, word = (
                export(example.model, (), example.kwargs, constants=constants),
                "ok, constants",
            )
        except LostwaxError as error:
            raise error from None
    compare(example, program, example.kwargs, want)
    return word


def small_integers(example: Example, varying: Mapping[str, Any] = NOTHING) -> list[str]:
    """The inputs that may be grids, sizes of images or kinds of tokens: all integers but texts, and
    but those of which a size varies."""
    return [
        name
        for name, value in example.kwargs.items()
        if isinstance(value, Tensor)
        and not value.is_floating_point()
        and not varying.get(name)
        and value.numel() <= _MOST_CONSTANT
        and not name.endswith(("input_ids", "labels"))
    ]


def compare(example: Example, program: Any, kwargs: dict[str, Any], want: Run) -> None:
    """Compare with eager. The fused kernel of attention has wrong gradients on the CPU for texts
    that a mask of `finfo.min` hides as a whole: what differs from it is to be what eager computes
    without that kernel."""
    got = run(program.module(), (), kwargs)
    got.outputs = [aligned(a, b) for a, b in zip(got.outputs, want.outputs, strict=True)]
    try:
        check(got, want)
        return
    except Exception:
        noisy = run_noisy(example.model, (), kwargs, None, 1e-6)
    try:
        check(got, want, [noisy])
    except DiffersError as error:
        with sdpa_kernel(SDPBackend.MATH):
            plain = run_eager(example, kwargs)
        try:
            check(got, plain)
        except DiffersError:
            raise error from None


def is_taken(example: Example, kwargs: dict[str, Any]) -> bool:
    """Does eager take a call?"""
    try:
        run_eager(example, kwargs)
    except EagerError:
        return False
    return True


def compare_other(example: Example, program: Any, kwargs: dict[str, Any]) -> None:
    """Compare at other sizes."""
    want = run_eager(example, kwargs)
    try:
        compare(example, program, kwargs, want)
    except InputValueError as error:
        raise ConstraintViolationError(f"a call is refused: {error}") from error


# ------------------------------------------------------------------------------- sizes that vary


def find_shortest(example: Example, others: list[dict[str, Any]]) -> int:
    """The smallest length of a text that eager takes, of those that were tried."""
    calls = [example.kwargs, *others]
    return min([each[name].shape[1] for each in calls for name in example.lengths()], default=2)


def export_varying(
    example: Example,
    shapes: Callable[..., Any],
    others: list[dict[str, Any]],
    tried: dict[str, str],
) -> tuple[Any, str]:
    """A program, and what it took beside its sizes. Where an empty call, or one of 1, is refused,
    it is not promised; nor are texts that are shorter than eager was seen to take. A range that a
    refusal suggests is the last resort, and one that a user would declare."""
    first: LostwaxError | None = None
    shortest = find_shortest(example, others)
    ranges = []
    for word, options in (
        ("ok", {}),
        ("ok, sizes", {"control_flow": "sizes"}),
        ("ok, constants", {"constants": small_integers(example, shapes(2))}),
    ):
        if options == {"constants": []}:
            continue
        different = {str(shapes(least)): least for least in (0, 1, 2, shortest)}
        for least in different.values():
            declared = shapes(least)
            try:
                return try_export(example, declared, options), word
            except LostwaxError as error:
                first, tried[word] = first or error, shorten_error(error)
                example.told += [str(error), *getattr(error, "__notes__", [])]
                if not isinstance(error, ConstraintViolationError):
                    break
                suggested = (declared, options, error)
                if least >= 2 and any(fix.kind == "constant" for fix in error.fixes):
                    ranges.append(suggested)
                    break
        else:
            ranges.append(suggested)
    for declared, options, refusal in ranges:
        found = export_range(example, declared, options, refusal, others)
        if found is not None:
            return found
    for _, options, _ in ranges:
        with contextlib.suppress(LostwaxError):
            program = try_export(example, shapes(shortest, _MANY), options)
            if takes(program, others):
                return program, "ok, range"
    assert first is not None
    raise first


def try_export(example: Example, declared: Any, options: dict[str, Any]) -> Any:
    return export(example.model, (), example.kwargs, dynamic_shapes=declared, **options)


def export_range(
    example: Example,
    declared: Any,
    options: dict[str, Any],
    refusal: ConstraintViolationError,
    others: list[dict[str, Any]],
) -> tuple[Any, str] | None:
    """A program for the range that a refusal suggests, or for the relation of sizes; None if it
    does not take all calls."""
    word = "ok, range"
    for _ in range(_MOST_FIXES):
        kinds = {fix.kind for fix in refusal.fixes}
        if not kinds or not kinds <= {"range", "constraint"}:
            return None
        declared = refine_dynamic_shapes_from_suggested_fixes(refusal, declared)
        if "constraint" in kinds:
            word, options = "ok, relation", {**options, "constraints": refusal.constraints}
        try:
            program = try_export(example, declared, options)
        except ConstraintViolationError as error:
            refusal = error
            continue
        except LostwaxError:
            return None
        return (program, word) if takes(program, others) else None
    return None


def takes(program: Any, calls: list[dict[str, Any]]) -> bool:
    try:
        for each in calls:
            run(program.module(), (), each)
    except InputValueError:
        return False
    return True


def varying_batch(example: Example) -> Callable[..., Any] | None:
    rows_of = find_rows(example)

    def shapes(least: int, most: int | None = None) -> Any:
        batch = Dim("batch", min=min(least, 2), max=most)
        return pytree.tree_map(
            lambda t: {0: rows * batch if rows > 1 else batch} if (rows := rows_of(t)) else None,
            example.kwargs,
        )

    return shapes


def varying_lengths(example: Example) -> Callable[..., Any] | None:
    lengths = example.lengths()
    if not lengths:
        return None
    return lambda least, most=None: {
        name: {1: Dim(lengths[name], min=min(max(least, 2), value.shape[1]), max=most)}
        if name in lengths
        else pytree.tree_map(lambda _: None, value)
        for name, value in example.kwargs.items()
    }


def batches(example: Example) -> Iterator[dict[str, Any]]:
    """The same for batches of other sizes than the example's."""
    count = example.batch
    rows_of = find_rows(example)
    for other in sorted({2 * count, max(2, count // 2)} - {count}):
        yield resize_batch(example, rows_of, other)


def resize_batch(example: Example, rows_of: Callable[[Any], int], size: int) -> dict[str, Any]:
    """The inputs for a batch of another size, twice as large at most."""
    return pytree.tree_map(  # type: ignore[no-any-return]
        lambda t: torch.cat([t, t])[: rows * size] if (rows := rows_of(t)) else t, example.kwargs
    )


def find_rows(example: Example) -> Callable[[Any], int]:
    """How many rows of an input belong to one of the batch. Rows that are several for each, as
    texts that are looked for in images, are counted where eager does not take others."""
    count = example.batch

    def count_rows(most: int, t: Any) -> int:
        rows = t.shape[0] / count if isinstance(t, Tensor) and t.ndim else 0
        return int(rows) if rows in range(1, most + 1) else 0

    one, several = partial(count_rows, 1), partial(count_rows, _MOST_ROWS)
    if count < 3 or not any(several(t) > 1 for t in example.tensors()):
        return one
    calls = [resize_batch(example, each, count - 1) for each in (one, several)]
    return several if [is_taken(example, each) for each in calls] == [False, True] else one


def texts(example: Example) -> Iterator[dict[str, Any]]:
    lengths = example.lengths()
    for change in (
        lambda t: torch.cat([t, t], 1),
        lambda t: t[:, : max(2, t.shape[1] - 2)].contiguous(),
    ):
        yield {n: change(v) if n in lengths else v for n, v in example.kwargs.items()}


# ----------------------------------------------------------------------------------- all testers


def sweep_file(path: Path, options: argparse.Namespace, done: set[tuple[str, str]]) -> None:
    """Make the rows of one tester."""
    name = path.parent.name
    try:
        module = import_leniently(f"tests.models.{name}.{path.stem}")
    except (Exception, unittest.SkipTest) as error:
        write(options.out, Row(name, "-", {"import": "eager"}, {"import": shorten_error(error)}))
        return
    for cls in vars(module).values():
        is_case = isinstance(cls, type) and issubclass(cls, unittest.TestCase)
        if (
            not is_case
            or cls.__module__ != module.__name__
            or not hasattr(cls, "_prepare_for_class")
        ):
            continue
        case: Any = cls()
        try:
            case.setUp()
        except (Exception, unittest.SkipTest) as error:
            found = {"setUp": "eager"}
            write(options.out, Row(name, cls.__name__, found, {"setUp": shorten_error(error)}))
            continue
        classes = list(case.all_model_classes or ())
        for model_class in classes[:1] if options.first else classes:
            if (name, model_class.__name__) not in done:
                row, start = Row(name, model_class.__name__), time.monotonic()
                sweep_class(case, model_class, row, options)
                row.seconds = round(time.monotonic() - start, 1)
                write(options.out, row)


def write(out: Path, row: Row) -> None:
    """One line at once: other processes write there, too."""
    words = "".join(f"{row.found.get(way, '-'):<16}" for way in WAYS)
    print(f"{row.module:<24}{row.name:<44}{words}{row.seconds}", flush=True)
    with out.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def run_files(files: list[Path], options: argparse.Namespace, done: set[tuple[str, str]]) -> None:
    """Each in a process of its own: what one breaks, the next does not see."""
    context = multiprocessing.get_context("fork")
    running: list[Any] = []
    for path in files:
        while len(running) >= options.jobs:
            time.sleep(0.2)
            running = [each for each in running if each.is_alive()]
        process = context.Process(target=sweep_file, args=(path, options, done))
        process.start()
        running.append(process)
    for each in running:
        each.join()


def summarize(rows: list[Row]) -> str:
    """How often each word stands in each way, and what was refused."""
    lines = [count(way, way, rows) for way in WAYS]
    lines.append(count("length, texts alone", "length", [row for row in rows if row.is_text]))
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for way, text in row.reasons.items():
            if row.found.get(way) in ("refused", "wrong", "error", "time"):
                kinds.setdefault(f"{row.found[way]}: {find_kind(text)}", set()).add(row.module)
    for kind, modules in sorted(kinds.items(), key=lambda each: -len(each[1])):
        lines.append(f"{len(modules):>4} {kind}\n       {' '.join(sorted(modules))[:160]}")
    return "\n".join(filter(None, lines))


def count(title: str, way: str, rows: list[Row]) -> str:
    counts = Counter(row.found[way] for row in rows if row.found.get(way, "-") != "-")
    counts.pop("eager", None)
    total = sum(counts.values())
    if not total:
        return ""
    ok = sum(n for word, n in counts.items() if word.startswith("ok"))
    words = ", ".join(f"{n} {word}" for word, n in counts.most_common())
    return f"{title}: {ok} of {total} equal eager ({ok / total:.1%}): {words}"


def find_kind(text: str) -> str:
    """The text of a reason without names and numbers."""
    text = re.sub(r" (?:at|asked at) .*", "", text)
    return re.sub(r"\b[su]?\d+\b", "N", text)[:140]


def read_rows(out: Path) -> list[Row]:
    if not out.exists():
        return []
    return [Row(**json.loads(line)) for line in out.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sweep.models", description=__doc__)
    parser.add_argument("--tests", type=Path, required=True, help="transformers' folder `tests`")
    parser.add_argument("--only", nargs="+", default=[], help="names of modules")
    parser.add_argument("--first", action="store_true", help="one class of models of each tester")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--part", default="1/1", help="2/8: of each eight testers the second")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="where the models are: cuda")
    parser.add_argument("--limit", type=int, default=60, help="seconds that one way may take")
    parser.add_argument("--out", type=Path, default=Path("models.jsonl"))
    parser.add_argument("--summary", action="store_true", help="count what is there, make nothing")
    options = parser.parse_args()
    if not options.summary:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
        import_torchvision()
        import_module("transformers.models.auto.modeling_auto")
        register_caches()
        sys.path.insert(0, str(options.tests.resolve().parent))
        sys.modules.pop("tests", None)  # ours has the same name
        if options.device == "cpu":  # a process that has begun with CUDA cannot be forked
            with contextlib.suppress(Exception, unittest.SkipTest):
                import_leniently("tests.test_modeling_common")  # once, for all processes
        done = {(row.module, row.name) for row in read_rows(options.out)}
        files = sorted(options.tests.glob("models/*/test_modeling_*.py"))
        chosen = [p for p in files if not options.only or p.parent.name in options.only]
        first, step = map(int, options.part.split("/"))
        run_files(chosen[first - 1 :: step], options, done)
    rows = read_rows(options.out)
    print(summarize(rows))
    return 0 if all(w not in ("wrong", "error") for row in rows for w in row.found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
