"""`lostwax explore --serve`: one page, for the browsers of this machine. Must not import torch."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lostwax.errors import CommandError

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
