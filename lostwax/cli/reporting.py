"""`lostwax export --report` and `lostwax explore`: models and programs looked at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lostwax.cli.exporting import Options, find_partitioner
from lostwax.cli.factories import build_model, read_dynamic
from lostwax.cli.outcome import Exit, Outcome, check_file, check_output
from lostwax.cli.programs import write_bytes
from lostwax.cli.progress import show_status
from lostwax.cli.serving import find_address, open_server, serve
from lostwax.errors import CommandError
from lostwax.explorer.page import explore
from lostwax.problems.report import report


def report_models(models: Sequence[str], output: str | None, options: Options) -> Outcome:
    """All problems of each model; with a file, the report of one model goes there."""
    if output is not None and len(models) > 1:
        raise CommandError("-o with --report is the report of one model")
    check_output(output, (".html", ".json", ".txt"))
    made: list[dict[str, Any]] = []
    texts: list[str] = []
    code = Exit.OK
    for spec in models:
        model = build_model(spec, options.seed)
        with show_status(f"looking at {spec}"):
            found = report(
                model.module,
                model.args,
                model.kwargs,
                dynamic_shapes=read_dynamic(options.dynamic, model),
                strict=options.strict,
                control_flow=options.control_flow,
                partitioner=find_partitioner(options.backend) if options.backend else None,
            )
        if output is not None:
            found.save(output)
        made.append({"model": spec, "file": output, **found.to_dict()})
        text = f"{output}: {found.summary}" if output is not None else str(found)
        texts.append(f"{spec}:\n{text}" if len(models) > 1 else text)
        code = code if found.ok else Exit.DIFFERS
    return Outcome({"reports": made}, "\n\n".join(texts), code)


def explore_file(file: str, output: str | None, lower: bool, port: int | None) -> Outcome:
    """Write the page of a file; with a port, serve it, and write it only if a name is given."""
    check_file(file)
    check_output(output, (".html",))
    page = output or (str(Path(file).with_suffix(".html").name) if port is None else None)
    with show_status(f"exploring {file}"):
        made = explore(file, page, lower=lower)
    told: dict[str, Any] = {"file": page, "stages": list(made.data["stages"])}
    lines, server = [], None
    if page is not None:
        told["bytes"] = Path(page).stat().st_size
        lines.append(f"{page}: {write_bytes(told['bytes'])}; open it in a browser")
    if port is not None:
        content = made.html.encode()
        told["bytes"] = len(content)
        server = open_server(content, port)
        told["address"] = find_address(server)
        lines.append(f"serving {file} at {told['address']} until Ctrl-C")
    after = None if server is None else partial(serve, server)
    return Outcome(told, "\n".join(lines), go_on=after)
