"""`lostwax explain`."""

from __future__ import annotations

from lostwax.cli.app import complete_code
from lostwax.errors import CLASSES


def test_a_page_by_code_and_by_class(lostwax):
    by_code, by_class = lostwax("explain", "lw0102"), lostwax("explain", "DataDependentError")
    assert by_code.out == by_class.out
    assert by_code.out.startswith("LW0102 DataDependentError\n\nThe program asks for the data")
    for part in ("\nWhat to do: ", "\nExample:\n", "\nMended:\n"):
        assert part in by_code.out
    page = lostwax("explain", "LW0102", "--json").json["result"]
    assert page["example"].startswith("def clipped(x):\n    return x if")


def test_all_codes_are_listed_and_completed(lostwax):
    listed = lostwax("explain").out
    for each in CLASSES:
        assert f"{each.code}  {each.__name__}: " in listed
    assert [code for code, _ in complete_code("lw030")] == [f"LW030{i}" for i in range(1, 6)]
