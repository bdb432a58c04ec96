"""`lostwax export --report` and `lostwax explore`: models and programs looked at, on pages that are
written, or served to the browsers of this machine."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lostwax.cli.exporting import Options, find_backend
from lostwax.cli.models.factories import build_model
from lostwax.cli.models.sizes import read_dynamic
from lostwax.cli.outcome import CommandOutcome, check_output, write_error
from lostwax.cli.programs import write_bytes
from lostwax.cli.progress import show_status
from lostwax.cli.several import Job, find_exit, run_jobs
from lostwax.cli.wording import write_in_options
from lostwax.errors import CommandError, LostwaxError
from lostwax.explorer.page import explore
from lostwax.problems.report import report


def report_models(
    models: Sequence[str],
    output: str | None,
    options: Options,
    jobs: int,
    on_ray: bool,
    opens: bool = False,
) -> CommandOutcome:
    """All problems of each model; with a file, the report of one model goes there."""
    if output is not None and len(models) > 1:
        raise CommandError("-o with --report is the report of one model")
    if options.constraints:
        raise CommandError("--constraint does not go with --report, which finds constraints")
    check_output(output, (".html", ".json", ".txt"))
    todo = [Job(model, output or "", options) for model in models]
    if len(todo) == 1 and not on_ray:
        with show_status(f"looking at {models[0]}"):
            listed = [report_model(todo[0])]
        text = listed[0].pop("text")
    else:
        listed = run_jobs("looking at models", report_model, todo, jobs, on_ray)
        text = "\n\n".join(map(_write_report, listed))
    notes = open_page(Path(output or "").resolve().as_uri()) if opens else []
    return CommandOutcome({"reports": listed}, text, find_exit(listed), notes)


def report_model(job: Job[Options]) -> dict[str, Any]:
    """All problems of one model; what is reported of it."""
    options = job.options
    model = build_model(job.model, options.building)
    found = report(
        model.module,
        model.args,
        model.kwargs,
        dynamic_shapes=read_dynamic(options.dynamic, model),
        constants=options.constants,
        strict=options.strict,
        control_flow=options.control_flow,
        partitioner=find_backend(options.writing.backend),
    )
    said = (
        replace(each, fix=write_in_options(each.fix, options.dynamic)) for each in found.findings
    )
    found = replace(found, findings=tuple(said))
    if job.file:
        found.save(job.file)
    text = f"{job.file}: {found.summary}" if job.file else str(found)
    result = {"model": job.model, "file": job.file or None, **found.to_dict()}
    return {**result, "error": None, "text": text}


def _write_report(result: dict[str, Any]) -> str:
    """What people read of one of several."""
    text = write_error(result["error"]) if result["error"] else result.pop("text")
    return f"{result['model']}:\n{text}"


def explore_file(
    file: str,
    other: str | None,
    output: str | None,
    lower: bool,
    profile: str | bool,
    port: int | None,
    opens: bool,
) -> CommandOutcome:
    """Write the page of a file, or of the differences of two; with a port, serve it, and write it
    only if a name is given."""
    if other is not None and lower:
        raise CommandError("--lower shows the stages of one file, not of two")
    check_output(output, (".html",))
    page = output or (str(Path(file).with_suffix(".html").name) if port is None else None)
    with show_status(f"exploring {file}"):
        try:
            made = explore(file, page, lower=lower, diff=other, profile=profile)
        except ValueError as error:
            if not profile or isinstance(error, LostwaxError):
                raise
            raise CommandError(str(error)) from None
    result: dict[str, Any] = {"file": page, "stages": list(made.data["stages"])}
    lines, server = [], None
    if page is not None:
        result["bytes"] = Path(page).stat().st_size
        todo = "" if opens else "; open it in a browser"
        lines.append(f"{page}: {write_bytes(result['bytes'])}{todo}")
    if port is not None:
        content = made.html.encode()
        result["bytes"] = len(content)
        server = open_server(content, port)
        result["address"] = find_address(server)
        lines.append(f"serving {file} at {result['address']} until Ctrl-C")
    after = None if server is None else partial(serve, server)
    notes = open_page(result.get("address") or Path(page or "").resolve().as_uri()) if opens else []
    return CommandOutcome(result, "\n".join(lines), notes=notes, go_on=after)


def open_page(address: str) -> list[str]:
    """Open a page in the user's browser; what to tell if there is none."""
    if webbrowser.open(address):
        return []
    return [f"no browser could be opened here\n  instead: open {address} in one"]


# ------------------------------------------------------------------------------------------ served


HOST = "127.0.0.1"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    page = b""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a browser that has gone is no error
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers with the page. A page has the user's source lines: other sites whose names lead
    here, by a trick of their DNS, get none."""

    server: _Server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        name = self.headers.get("Host", "").rpartition(":")[0]
        if name not in (HOST, "localhost"):
            self.send_error(403, "this page is for this machine alone")
            return
        if self.path.partition("?")[0] != "/":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.server.page)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(self.server.page)

    def log_message(self, *_: Any) -> None:
        pass


def open_server(page: bytes, port: int) -> _Server:
    """A server that listens already, on that port or, with 0, on a free one."""
    try:
        server = _Server((HOST, port), _Handler)
    except OSError as error:
        raise CommandError(
            f"port {port} cannot be had: {error.strerror}\n  instead: --port 0, which is a free one"
        ) from error
    server.page = page
    return server


def find_address(server: _Server) -> str:
    return f"http://{HOST}:{server.server_port}/"


def serve(server: _Server) -> None:
    """Answer until somebody interrupts it."""
    with server:
        server.serve_forever()
