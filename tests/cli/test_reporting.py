"""`lostwax export --report` and `lostwax explore`."""

from __future__ import annotations

import json


def test_all_problems_of_a_model(lostwax, folder):
    ran = lostwax("export", "nets.py:reads", "--report")
    assert ran.code == 4
    assert ran.out.startswith("nets.py:18:20: LW0301 error: numpy() needs the data of ")
    assert not list(folder.glob("*.pt2"))
    data = lostwax("export", "nets.py:reads", "nets.py:tiny", "--report", "--json").json["result"]
    assert [r["ok"] for r in data["reports"]] == [False, True]


def test_a_report_goes_to_a_file(lostwax, folder):
    words = ["export", "nets.py:tiny", "--report", "--dynamic", "batch", "--backend", "xnnpack"]
    ran = lostwax(*words, "-o", "r.json")
    assert ran.code == 4, "a size without an upper bound"
    found = json.loads((folder / "r.json").read_text())
    assert "LW1105" in {f["code"] for f in found["findings"]}
    assert lostwax(*words, "-o", "r.html").out.startswith("r.html: 0 errors, 1 warning")
    assert (folder / "r.html").read_text().startswith("<!doctype html>")
    words[1:1] = ["nets.py:tiny"]
    assert lostwax(*words, "-o", "r.html").code == 2


def test_a_file_is_explored(lostwax, folder):
    lostwax("export", "nets.py:tiny", "-o", "a.pt2")
    told = lostwax("explore", "a.pt2", "--lower", "--json").json["result"]
    assert told["bytes"] == (folder / "a.html").stat().st_size
    assert len(told["stages"]) == 3
    assert lostwax("explore", "gone.pt2").code == 2
