"""What shells complete on a line of `lostwax`. Must not import torch, nor what does."""

from __future__ import annotations

import typer


def complete_code(incomplete: str) -> list[tuple[str, str]]:
    from lostwax.cli.explaining import list_codes

    return [each for each in list_codes() if each[0].startswith(incomplete.upper())]


def complete_backend(incomplete: str) -> list[str]:
    from lostwax.late_imports import list_backends

    return [each for each in list_backends() if each.startswith(incomplete)]


def complete_quantizer(incomplete: str) -> list[str]:
    from lostwax.cli.plugins import QUANTIZERS

    return [each for each in QUANTIZERS if each.startswith(incomplete)]


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    from lostwax.cli.models.names import complete_name

    before: list[str] = []
    for name in ("models", "targets", "file", "model"):
        given = ctx.params.get(name)
        before += given if isinstance(given, (list, tuple)) else [given] if given else []
    return complete_name(incomplete, before)


def complete_place(incomplete: str) -> list[str]:
    from lostwax.cli.models.names import list_places

    return [each for each in list_places() if each.startswith(incomplete)]
