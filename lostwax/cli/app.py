"""The commands and their options. Each imports what it does when it is called. Must not import
torch, nor what does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from lostwax.cli.models.completion import (
    complete_backend,
    complete_code,
    complete_model,
    complete_place,
    complete_quantizer,
)
from lostwax.cli.models.options import BUILDING, option
from lostwax.cli.outcome import (
    RESULTS,
    Command,
    CommandOutcome,
    Commands,
    check_file,
    check_inputs,
    check_output,
    finish,
)
from lostwax.errors import CommandError

app = typer.Typer(
    name="lostwax",
    cls=Commands,
    help="Captures PyTorch programs ahead of time, shows, checks, lowers and runs them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # half of the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A MODEL is MODULE:FACTORY, path/to/model.py:FACTORY, timm:resnet50, transformers:bert "
    "or hf:DIR, with options: timm:resnet50?num_classes=10; lostwax models lists them. A factory "
    "returns a module and example inputs. Exit codes: 0 done, 1 an exception of the model's, 2 the "
    "command line is wrong, 3 refused, 4 the answer is no.",
)


class OutputForm(StrEnum):
    """What is written."""

    pt2 = "pt2"
    core = "core"
    edge = "edge"
    pte = "pte"
    onnx = "onnx"


class Flow(StrEnum):
    """What becomes of branches on data."""

    capture = "capture"
    refuse = "refuse"
    sizes = "sizes"


Json = Annotated[bool, option("--json", help="Print one JSON object.")]
Traceback = Annotated[bool, option("--traceback", help="Show where an error comes from.")]
Quiet = Annotated[
    bool, option("-q", "--quiet", help="Print the answer and errors: no progress, no warnings.")
]
Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL", help="See lostwax --help.", autocompletion=complete_model),
]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="See lostwax --help.", autocompletion=complete_model)
]
File = Annotated[str, typer.Argument(metavar="FILE", help="A .pt2 or .pte file.")]
Runnable = Annotated[str, typer.Argument(metavar="FILE", help="A .pt2, .pte or .onnx file.")]
Lowered = Annotated[str, typer.Argument(metavar="FILE", help="A .pt2 file.")]
Out = Annotated[
    str | None,
    option("-o", "--output", help="The file, or the folder for several.", metavar="FILE"),
]
Name = Annotated[
    str, option("--name", help="The program or method, if there are several.", metavar="NAME")
]
Backend = Annotated[
    str,
    option(
        "--backend",
        help="Hand parts to a backend; lostwax doctor lists them.",
        metavar="NAME",
        autocompletion=complete_backend,
    ),
]
Opset = Annotated[
    int | None, option("--opset", help="Of an .onnx file, 18 to 26; 23.", metavar="N")
]
Record = Annotated[
    bool, option("--etrecord", help="An ETRecord beside a .pte file: its lines, for profile.")
]
Bundle = Annotated[
    list[str] | None,
    option("--bundle", help="Calls with their results, in x.bpte: example, x.npy, calls.pt, …."),
]
Functions = Annotated[
    bool, option("--functions", help="Calls of modules in an .onnx file are calls of functions.")
]
Imports = Annotated[
    list[str] | None,
    option(
        "--import",
        help="Import a module first: it registers operators or classes.",
        metavar="MODULE",
    ),
]
Inputs = Annotated[
    list[str] | None,
    option(
        "-i",
        "--input",
        help="A .pt or .npy file for each input, in order, or mask=m.npy.",
        metavar="FILE",
    ),
]
Jobs = Annotated[int, option("-j", "--jobs", min=1, help="Processes side by side.", metavar="N")]
OnRay = Annotated[bool, option("--ray", help="Run on Ray, if it is installed.")]
Open = Annotated[bool, option("--open", help="Open the page in a browser.")]
Dynamic = Annotated[
    list[str] | None,
    option(
        "-d",
        "--dynamic",
        help="A size that varies: batch, batch:1..64, 1=length, tokens.1=length:1..512, 0=2*half; "
        "auto: all that can.",
        metavar="SIZE",
    ),
]
Constraints = Annotated[
    list[str] | None,
    option("--constraint", help="What holds of sizes: 'length % 8 == 0'.", metavar="TEXT"),
]
Constants = Annotated[
    list[str] | None,
    option(
        "--constant",
        help="An input whose value stays that of the example: grid, batch['grid'].",
        metavar="NAME",
    ),
]

EVERYWHERE = {"as_json": (Json, False), "is_quiet": (Quiet, False), "traceback": (Traceback, False)}


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lostwax {sys.modules['lostwax'].__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    pass


def command(
    *, reads_files: bool = True, builds: bool = False, status: str = "loading torch"
) -> Callable[[Callable[..., CommandOutcome]], None]:
    """Add a function as a command, which returns what it has to tell. All of them have `--json`,
    `--quiet` and `--traceback`, those that read files `--import`, those that build models what says
    how, which the function gets as `building`. The status is what a terminal shows first."""
    more = {**(BUILDING if builds else {}), **({"imports": (Imports, None)} if reads_files else {})}
    more |= EVERYWHERE

    def add(function: Callable[..., CommandOutcome]) -> None:
        hints = {**get_type_hints(function, include_extras=True), "return": None}
        own = [each for each in signature(function).parameters.values() if each.name != "building"]
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for name, (hint, default) in more.items()
        ]
        name = function.__name__

        def run(**given: Any) -> None:
            common = {each.name: given.pop(each.name) for each in added}
            if builds:
                from lostwax.cli.models.names import make_building

                given["building"] = make_building(**{key: common[key] for key in BUILDING})

            def work() -> CommandOutcome:
                if names := common.get("imports"):
                    from lostwax.cli.models.factories import import_places

                    import_places(names)
                return function(**given)

            finish(
                name,
                work,
                as_json=common["as_json"],
                show_traceback=common["traceback"],
                is_quiet=common["is_quiet"],
                status=status and f"{name}: {status}",
            )

        annotated = [each.replace(annotation=hints[each.name]) for each in own]
        run.__signature__ = Signature([*annotated, *added])  # type: ignore[attr-defined]
        hints.pop("building", None)
        run.__annotations__ = {**hints, **{each.name: each.annotation for each in added}}
        run.__name__, run.__doc__ = name, function.__doc__
        app.command(cls=Command)(run)

    return add


def _list_given(**options: Any) -> dict[str, Any]:
    """Those that somebody has given."""
    return {name: value for name, value in options.items() if value is not None}


@command(reads_files=False, builds=True)
def export(
    models: Models,
    building: Any,
    output: Out = None,
    dynamic: Dynamic = None,
    constraints: Constraints = None,
    constants: Constants = None,
    strict: Annotated[
        bool, option("--strict", help="Refuse what Python does beside tensors.")
    ] = False,
    core: Annotated[bool, option("--core", help="In core ATen.")] = False,
    edge: Annotated[bool, option("--edge", help="A listing in the Edge dialect.")] = False,
    pte: Annotated[bool, option("--pte", help="A .pte file for ExecuTorch.")] = False,
    onnx: Annotated[bool, option("--onnx", help="An .onnx file; so does -o x.onnx.")] = False,
    backend: Backend = "",
    opset: Opset = None,
    functions: Functions = False,
    etrecord: Record = False,
    bundle: Bundle = None,
    control_flow: Annotated[
        Flow, option("--control-flow", help="Branches on data.")
    ] = Flow.capture,
    report: Annotated[
        bool, option("--report", help="List all problems; -o x.html, x.json or x.txt.")
    ] = False,
    opens: Open = False,
    jobs: Jobs = 1,
    ray: OnRay = False,
    llm: Annotated[
        bool, option("--llm", help="A language model, for ExecuTorch's runners: hf:DIR.")
    ] = False,
    context: Annotated[
        int | None, option("--context", min=1, help="Tokens that it keeps; 2048.", metavar="N")
    ] = None,
    length: Annotated[
        int | None, option("--length", min=1, help="Tokens that it takes at once.", metavar="N")
    ] = None,
    quantize: Annotated[
        str | None, option("--quantize", help="Of layers: 8da4w, 8da8w, 8w, 4w.", metavar="HOW")
    ] = None,
    embedding: Annotated[
        int | None, option("--embedding", help="Bits of tables: 8, 4, 2.", metavar="BITS")
    ] = None,
    group: Annotated[
        int | None, option("--group", help="Weights with one scale; 32.", metavar="N")
    ] = None,
    sdpa: Annotated[
        str | None, option("--sdpa", help="Attention by kernels of runners: custom.", metavar="HOW")
    ] = None,
    compare: Annotated[
        bool, option("--check", help="Compare its tokens with the model's, in the runtime.")
    ] = False,
) -> CommandOutcome:
    """Export models to files."""
    from lostwax.cli.models.names import check_names

    asked_of_llm = {
        "context": context,
        "length": length,
        "quantize": quantize,
        "embedding": embedding,
        "group": group,
        "sdpa": sdpa,
        "check": compare or None,
    }
    words = _list_given(**asked_of_llm)
    if llm:
        others = [dynamic, constraints, constants, strict, core, edge, report, opens, ray, jobs > 1]
        others += [etrecord, bundle]
        check_names(models, building)
        from lostwax.cli.language import export_language

        return export_language(models, output, building, backend, words, any(others))
    if words:
        raise CommandError(f"--{next(iter(words))} goes with --llm")
    if opens and not (report and (output or "").endswith(".html")):
        raise CommandError("--open is of a page\n  instead: --report -o report.html --open")
    check_names(models, building)
    from lostwax.cli.exporting import Options, Writing, choose_form, export_models

    wanted = {"core": core, "edge": edge, "pte": pte, "onnx": onnx}
    asked = [name for name, is_asked in wanted.items() if is_asked]
    more = _list_given(opset=opset, functions=functions or None)
    writing = Writing(backend, more, etrecord, tuple(bundle or ()))
    form = "" if report else choose_form(output, asked, writing)
    options = Options(
        building,
        tuple(dynamic or ()),
        tuple(constraints or ()),
        tuple(constants or ()),
        strict,
        form,
        control_flow.value,
        writing,
    )
    if report:
        from lostwax.cli.reporting import report_models

        return report_models(models, output, options, jobs, ray, opens)
    return export_models(models, output, options, jobs, ray)


@command()
def show(
    file: File,
    ops: Annotated[bool, option("--ops", help="How often each operator is called.")] = False,
    memory: Annotated[bool, option("--memory", help="The memory plan.")] = False,
    name: Name = "",
) -> CommandOutcome:
    """Show a program: its text, signature, ranges and guards."""
    check_file(file)
    from lostwax.cli.programs import show_file

    return show_file(file, name, ops, memory)


@command(reads_files=False, builds=True)
def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="[FILE] MODEL",
            help="A .pt2 or .onnx file and its model, or a model; .pte with --stages; .bpte alone.",
            autocompletion=complete_model,
        ),
    ],
    building: Any,
    draws: Annotated[
        int, option("--draws", min=0, help="How many sizes are drawn.", metavar="N")
    ] = 8,
    own_weights: Annotated[
        bool, option("--own-weights", help="Keep the model's weights, not the file's.")
    ] = False,
    dynamic: Dynamic = None,
    stages: Annotated[
        bool, option("--stages", help="Its values stage by stage: which line goes wrong first.")
    ] = False,
    quantized: Annotated[
        str, option("--quantized", help="With --stages: its quantized .pt2 file.", metavar="FILE")
    ] = "",
    bar: Annotated[float | None, option("--bar", help="What an error in a stage may be.")] = None,
    inputs: Inputs = None,
    backend: Backend = "",
    jobs: Jobs = 1,
    ray: OnRay = False,
    imports: Imports = None,
) -> CommandOutcome:
    """Compare programs with their models at several sizes."""
    from lostwax.cli.models.names import check_names, split_bundles, split_targets

    if bundles := split_bundles(targets):
        from lostwax.cli.running import check_bundles

        return check_bundles(bundles)
    pairs = split_targets(targets)
    for file, _ in pairs if len(pairs) == 1 else ():
        if file:
            check_file(file)
    if quantized.endswith(".pt2"):
        check_file(quantized)
    check_names([model for _, model in pairs], building)
    from lostwax.cli.exporting import Options
    from lostwax.cli.running import CheckOptions, StageOptions, check_model_stages, check_models

    check_inputs(inputs or ())
    how = Options(building, tuple(dynamic or ()))
    options = CheckOptions(how, draws, own_weights, tuple(imports or ()))
    if stages:
        how_far = StageOptions(inputs or (), backend, quantized, bar)
        return check_model_stages(pairs, options, how_far)
    if (
        inputs
        or backend
        or quantized
        or bar is not None
        or any(f.endswith(".pte") for f, _ in pairs)
    ):
        raise CommandError("--input, --backend, --quantized, --bar and .pte files go with --stages")
    return check_models(pairs, options, jobs, ray)


@command()
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A .pt2 file.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="A .pt2 file.")],
) -> CommandOutcome:
    """List what differs between two programs."""
    check_file(old)
    check_file(new)
    from lostwax.cli.programs import diff_files

    return diff_files(old, new)


@command()
def run(
    file: Runnable,
    inputs: Inputs = None,
    output: Annotated[
        str | None,
        option(
            "-o", "--output", help="Write the results: a .npy, .npz or .pt file.", metavar="FILE"
        ),
    ] = None,
    name: Name = "",
) -> CommandOutcome:
    """Run a program, with its example inputs or with those of files."""
    check_file(file)
    check_inputs(inputs or ())
    check_output(output, RESULTS)
    from lostwax.cli.running import run_file

    return run_file(file, inputs or (), output, name)


@command()
def lower(
    file: Lowered,
    output: Out = None,
    form: Annotated[
        OutputForm | None, option("--to", help="What is written; else what the file's name says.")
    ] = None,
    backend: Backend = "",
    opset: Opset = None,
    functions: Functions = False,
    etrecord: Record = False,
    bundle: Bundle = None,
) -> CommandOutcome:
    """Lower the program of a .pt2 file to another form."""
    check_file(file)
    from lostwax.cli.exporting import Writing, lower_file

    more = _list_given(opset=opset, functions=functions or None)
    writing = Writing(backend, more, etrecord, tuple(bundle or ()))
    return lower_file(file, output, form.value if form else None, writing)


@command()
def split(
    file: Lowered,
    at: Annotated[
        list[str],
        option("--at", help="A module with which a stage begins: layers.4.", metavar="MODULE"),
    ],
    output: Annotated[
        str, option("-o", "--output", help="The folder of the stages.", metavar="DIR")
    ] = ".",
) -> CommandOutcome:
    """Cut the program of a .pt2 file into stages, a file for each."""
    check_file(file)
    from lostwax.cli.programs import split_file

    return split_file(file, at, output)


@command(reads_files=False, builds=True)
def quantize(
    model: Model,
    building: Any,
    output: Annotated[
        str | None, option("-o", "--output", help="A .pt2, .pte or .onnx file.", metavar="FILE")
    ] = None,
    quantizer: Annotated[
        str,
        option(
            "--quantizer",
            help="Who says what is quantized: xnnpack, xnnpack?is_dynamic=true, x86, "
            "MODULE:FUNCTION.",
            metavar="NAME",
            autocompletion=complete_quantizer,
        ),
    ] = "xnnpack",
    calibrate: Annotated[
        list[str] | None,
        option(
            "--calibrate",
            help="Calls to see the values of: .npy, .npz, .pt, a folder, MODULE:FUNCTION.",
            metavar="INPUTS",
        ),
    ] = None,
    dynamic: Dynamic = None,
    constraints: Constraints = None,
    backend: Backend = "",
) -> CommandOutcome:
    """Quantize a model by the values that calls have, to a file."""
    from lostwax.cli.models.names import check_calls, check_names

    check_names([model], building)
    check_output(output, (".pt2", ".pte", ".onnx"))
    check_calls(calibrate or ())
    from lostwax.cli.exporting import Options, Writing, choose_form
    from lostwax.cli.quantizing import choose_backend, quantize_model

    if (output or "").endswith(".pte"):  # what is quantized for a backend goes there
        backend = backend or choose_backend(quantizer)
    writing = Writing(backend)
    form = choose_form(output, [], writing)
    sizes = tuple(dynamic or ()), tuple(constraints or ())
    options = Options(building, *sizes, form=form, writing=writing)
    return quantize_model(model, output, quantizer, calibrate or [], options)


@command(reads_files=False)
def generate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .pte file of export --llm.")],
    prompt: Annotated[str, typer.Argument(metavar="TEXT", help="The text to continue.")],
    tokenizer: Annotated[
        str, option("--tokenizer", help="Its tokenizer.json, or a tokenizer.model.", metavar="FILE")
    ],
    most: Annotated[
        int | None,
        option(
            "--max-new-tokens", min=1, help="At most so many; all that fit if not.", metavar="N"
        ),
    ] = None,
    temperature: Annotated[
        float, option("--temperature", min=0.0, help="0: the most likely tokens.", metavar="T")
    ] = 0.0,
    begin: Annotated[
        int, option("--bos", min=0, help="Tokens that begin a text, put before it.", metavar="N")
    ] = 0,
) -> CommandOutcome:
    """Continue a text by a language model, in ExecuTorch's own runner."""
    check_file(file)
    check_file(tokenizer)
    from lostwax.cli.language import generate_text

    return generate_text(file, tokenizer, prompt, -1 if most is None else most, temperature, begin)


@command(builds=True)
def bench(
    file: File,
    building: Any,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="Run this in eager beside it.", autocompletion=complete_model
        ),
    ] = None,
    inputs: Inputs = None,
    repeat: Annotated[
        int, option("--repeat", min=1, help="How many calls count.", metavar="N")
    ] = 20,
    threads: Annotated[
        int, option("--threads", min=0, help="Of torch; 0 is its own choice.", metavar="N")
    ] = 0,
) -> CommandOutcome:
    """Time a program, and beside it the model in eager."""
    from lostwax.cli.models.names import check_names

    check_file(file)
    check_inputs(inputs or ())
    check_names([model] if model else [], building)
    from lostwax.cli.benching import bench_file

    return bench_file(file, model or "", inputs or (), building, repeat, threads)


@command()
def profile(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A .pte or .pt2 file, or a profile, .json.")
    ],
    other: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="Another: what changed.")
    ] = None,
    inputs: Inputs = None,
    repeat: Annotated[
        int, option("--repeat", min=1, help="How many calls count.", metavar="N")
    ] = 20,
    by: Annotated[
        str | None, option("--by", help="operator, module or line; all if not.", metavar="KIND")
    ] = None,
    most: Annotated[int, option("--most", min=1, help="Rows of a table.", metavar="N")] = 12,
    etdump: Annotated[
        str | None,
        option("--etdump", help="What a device noted; nothing is run.", metavar="FILE"),
    ] = None,
    record: Annotated[
        str | None, option("--record", help="The ETRecord, if not beside.", metavar="FILE")
    ] = None,
    name: Name = "forward",
) -> CommandOutcome:
    """Tell where the time goes, by operator, module and line."""
    for each in (file, other, etdump, record):
        if each is not None:
            check_file(each)
    check_inputs(inputs or ())
    from lostwax.cli.benching import ProfileOptions, profile_files, read_kinds

    options = ProfileOptions(
        tuple(inputs or ()), repeat, name, etdump, record, tuple(read_kinds(by)), most
    )
    return profile_files(file, other, options)


@command()
def explore(
    file: File,
    other: Annotated[
        str | None,
        typer.Argument(metavar="OTHER", help="Another file: the differences in colours."),
    ] = None,
    output: Annotated[
        str | None, option("-o", "--output", help="The page, .html.", metavar="FILE")
    ] = None,
    lower: Annotated[bool, option("--lower", help="Core ATen and Edge beside it.")] = False,
    profile: Annotated[
        str | None,
        option("--profile", metavar="FILE", help="Times by node, .json, as colours."),
    ] = None,
    measure: Annotated[
        bool, option("--measure", help="Run the example, and colour by time and error.")
    ] = False,
    serve: Annotated[bool, option("--serve", help="Serve it here until Ctrl-C.")] = False,
    port: Annotated[
        int,
        option("--port", min=0, max=65535, help="With --serve; 0 is a free one.", metavar="N"),
    ] = 0,
    opens: Open = False,
) -> CommandOutcome:
    """Write a page that shows a program in a browser, or serve it."""
    for given in filter(None, (file, other, profile)):
        check_file(given)
    check_output(output, (".html",))
    from lostwax.cli.reporting import explore_file

    what = profile or measure
    return explore_file(file, other, output, lower, what, port if serve else None, opens)


@command(reads_files=False, status="")
def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="LW0102, or a class.", autocompletion=complete_code),
    ] = None,
) -> CommandOutcome:
    """Explain an error: its cause, and what to do, by an example."""
    from lostwax.cli.explaining import explain_code

    return explain_code(code)


@command(reads_files=False, status="")
def models(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="LIBRARY",
            help="timm, transformers, hf, or a file of Python.",
            autocompletion=complete_place,
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Argument(metavar="PART", help="Those with this in their names.")
    ] = None,
) -> CommandOutcome:
    """List the models that can be named, of a library or of a file."""
    from lostwax.cli.listing import list_models

    return list_models(place or "", part or "")


@command(reads_files=False)
def doctor() -> CommandOutcome:
    """Tell versions, devices, backends, and what is missing."""
    from lostwax.cli.listing import examine

    return examine()
