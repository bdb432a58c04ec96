"""The commands and their options. Each imports what it does when it is called. Must not import
torch, nor what does."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from lostwax.cli.outcome import CommandOutcome, finish

app = typer.Typer(
    name="lostwax",
    help="Captures PyTorch programs ahead of time, shows, checks, lowers and runs them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # half of the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A MODEL is MODULE:FACTORY, path/to/model.py:FACTORY, timm:resnet50 or "
    "transformers:bert, with options: timm:resnet50?num_classes=10. Its factory returns a module "
    "and example inputs. Exit codes: 0 done, 1 an exception of the model's, 2 the command line is "
    "wrong, 3 refused, 4 the answer is no.",
)


class OutputForm(StrEnum):
    """What is written."""

    pt2 = "pt2"
    core = "core"
    edge = "edge"
    pte = "pte"


class Flow(StrEnum):
    """What becomes of branches on data."""

    capture = "capture"
    refuse = "refuse"
    sizes = "sizes"


def complete_code(incomplete: str) -> list[tuple[str, str]]:
    from lostwax.cli.explaining import list_codes

    return [each for each in list_codes() if each[0].startswith(incomplete.upper())]


def complete_backend(incomplete: str) -> list[str]:
    from lostwax.cli.plugins import list_backends

    return [each for each in list_backends() if each.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where an error comes from.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="See below: lostwax --help.")]
Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help="See lostwax --help.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="A .pt2 or .pte file.")]
Out = Annotated[
    str | None, typer.Option("-o", "--output", help="The file, or the folder for several.")
]
Name = Annotated[str, typer.Option("--name", help="The program or method, if there are several.")]
Seed = Annotated[int, typer.Option("--seed", help="For random weights and inputs.")]
Backend = Annotated[
    str,
    typer.Option(
        "--backend", help="Hand parts to a backend, by name.", autocompletion=complete_backend
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="Import a module first: it registers operators or classes."),
]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="Processes side by side.")]
OnRay = Annotated[bool, typer.Option("--ray", help="Run on Ray, if it is installed.")]
Dynamic = Annotated[
    list[str] | None,
    typer.Option(
        "--dynamic",
        "-d",
        help="A size that varies: batch, batch:1..64, 1=length, tokens.1=length:1..512.",
    ),
]


def import_first(names: list[str] | None) -> None:
    """Import what registers the operators and classes that are in a file."""
    if names:
        from lostwax.cli.factories import import_place

        for name in names:
            import_place(name)


def show_version(asked: bool) -> None:
    if asked:
        import sys

        typer.echo(f"lostwax {sys.modules['lostwax'].__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    pass


def command(*, reads_files: bool = True) -> Callable[[Callable[..., CommandOutcome]], None]:
    """Add a function as a command, which returns what it has to tell. All of them have `--json` and
    `--traceback`, those that read files `--import`."""
    more = {"imports": Imports, "as_json": Json, "traceback": Traceback}
    values = {"imports": None, "as_json": False, "traceback": False}

    def add(function: Callable[..., CommandOutcome]) -> None:
        hints = {**get_type_hints(function, include_extras=True), "return": None}
        own = signature(function).parameters.values()
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=values[name], annotation=hint)
            for name, hint in more.items()
            if reads_files or name != "imports"
        ]

        def run(**given: Any) -> None:
            common = {each.name: given.pop(each.name) for each in added}

            def work() -> CommandOutcome:
                import_first(common.get("imports"))
                return function(**given)

            name = function.__name__
            finish(name, work, as_json=common["as_json"], show_traceback=common["traceback"])

        annotated = [each.replace(annotation=hints[each.name]) for each in own]
        run.__signature__ = Signature([*annotated, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {**hints, **{each.name: each.annotation for each in added}}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        app.command()(run)

    return add


@command(reads_files=False)
def export(
    models: Models,
    output: Out = None,
    dynamic: Dynamic = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what Python does beside tensors.")
    ] = False,
    core: Annotated[bool, typer.Option("--core", help="In core ATen.")] = False,
    edge: Annotated[bool, typer.Option("--edge", help="A listing in the Edge dialect.")] = False,
    pte: Annotated[bool, typer.Option("--pte", help="A .pte file for ExecuTorch.")] = False,
    backend: Backend = "",
    control_flow: Annotated[
        Flow, typer.Option("--control-flow", help="Branches on data.")
    ] = Flow.capture,
    report: Annotated[
        bool, typer.Option("--report", help="List all problems; -o x.html, x.json or x.txt.")
    ] = False,
    jobs: Jobs = 1,
    ray: OnRay = False,
    seed: Seed = 0,
) -> CommandOutcome:
    """Export models to files."""
    from lostwax.cli.exporting import Options, choose_form, export_models

    if report:
        from lostwax.cli.reporting import report_models

        options = Options(tuple(dynamic or ()), strict, "", backend, control_flow.value, seed)
        return report_models(models, output, options, jobs, ray)
    form = choose_form(output, core, edge, pte, backend)
    options = Options(tuple(dynamic or ()), strict, form, backend, control_flow.value, seed)
    return export_models(models, output, options, jobs, ray)


@command()
def show(
    file: File,
    ops: Annotated[bool, typer.Option("--ops", help="How often each operator is called.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="The memory plan.")] = False,
    name: Name = "",
) -> CommandOutcome:
    """Show a program: its text, signature, ranges and guards."""
    from lostwax.cli.programs import show_file

    return show_file(file, name, ops, memory)


@command(reads_files=False)
def check(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="[FILE] MODEL...", help="A .pt2 file and its model, or a model."),
    ],
    draws: Annotated[int, typer.Option("--draws", min=0, help="How many sizes are drawn.")] = 8,
    own_weights: Annotated[
        bool, typer.Option("--own-weights", help="Keep the model's weights, not the file's.")
    ] = False,
    dynamic: Dynamic = None,
    jobs: Jobs = 1,
    ray: OnRay = False,
    seed: Seed = 0,
    imports: Imports = None,
) -> CommandOutcome:
    """Compare programs with their models, at the example and at drawn sizes."""
    from lostwax.cli.running import CheckOptions, check_models

    options = CheckOptions(draws, own_weights, tuple(dynamic or ()), seed, tuple(imports or ()))
    return check_models(targets, options, jobs, ray)


@command()
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A .pt2 file.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="A .pt2 file.")],
) -> CommandOutcome:
    """List what differs between two programs."""
    from lostwax.cli.programs import diff_files

    return diff_files(old, new)


@command()
def run(
    file: File,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="A .pt or .npy file for each input, in order."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="Write the results: a .pt file.")
    ] = None,
    name: Name = "",
) -> CommandOutcome:
    """Run a program, with its example inputs or with those of files."""
    from lostwax.cli.running import run_file

    return run_file(file, inputs or (), output, name)


@command()
def lower(
    file: File,
    output: Out = None,
    form: Annotated[OutputForm, typer.Option("--to", help="What is written.")] = OutputForm.pte,
    backend: Backend = "",
) -> CommandOutcome:
    """Lower the program of a .pt2 file: to a .pte file, or to core ATen."""
    from lostwax.cli.exporting import lower_file

    return lower_file(file, output, form.value, backend)


@command()
def bench(
    file: File,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Run this in eager beside it.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="How many calls count.")] = 20,
    seed: Seed = 0,
) -> CommandOutcome:
    """Time a program, and beside it the model in eager."""
    from lostwax.cli.running import bench_file

    return bench_file(file, model or "", repeat, seed)


@command()
def explore(
    file: File,
    other: Annotated[
        str | None,
        typer.Argument(metavar="[OTHER]", help="Another file: the differences in colours."),
    ] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", help="The page, .html.")] = None,
    lower: Annotated[bool, typer.Option("--lower", help="Core ATen and Edge beside it.")] = False,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="FILE", help="Times by node, .json, as colours."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run the example, and colour by time and error.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it to this machine until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="With --serve; 0 is a free one.")
    ] = 0,
) -> CommandOutcome:
    """Write a page on which a program can be looked at in a browser, or serve it."""
    from lostwax.cli.reporting import explore_file

    return explore_file(file, other, output, lower, profile or measure, port if serve else None)


@command(reads_files=False)
def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="[CODE]", help="LW0102, or a class.", autocompletion=complete_code),
    ] = None,
) -> CommandOutcome:
    """Explain an error: its cause, what to do, an example and the example mended."""
    from lostwax.cli.explaining import explain_code

    return explain_code(code)


def main() -> None:
    """The entry point."""
    app(prog_name="lostwax")
