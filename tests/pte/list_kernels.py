"""`python -m tests.pte.list_kernels`: makes `kernels.txt` of the installed runtime."""

from __future__ import annotations

from lostwax.pte.lowering.kernels import FILE

HEAD = "# The kernels of the ExecuTorch runtime; made by `python -m tests.pte.list_kernels`."


def list_kernels() -> str:
    from executorch.extension.pybindings import portable_lib

    return "\n".join([HEAD, *sorted(portable_lib._get_operator_names()), ""])


if __name__ == "__main__":
    FILE.write_text(list_kernels())
