"""`lostwax models`, `lostwax doctor`, and what a shell completes."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from lostwax.cli import listing
from lostwax.cli.app import app
from lostwax.cli.models.names import complete_name, list_names


@pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")
def test_all_models_of_timm_are_found_without_it():
    from lostwax.cli.models.libraries import import_library

    assert set(list_names("timm")) == set(import_library("timm").list_models())


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_types_and_classes_of_transformers():
    names = list_names("transformers")
    assert {"bert", "llama", "LlamaForCausalLM", "GPT2LMHeadModel"} <= {*names}


def test_factories_are_listed_and_not_imported(lostwax, folder):
    (folder / "bad.py").write_text("raise SystemExit(7)\ndef made(): pass\ndef _hidden(): pass\n")
    ran = lostwax("models", "bad.py", "--json")
    assert ran.json["result"] == {"models": ["bad.py:made"]}
    assert "nets.py:tiny\n" in lostwax("models", "nets.py").out
    assert lostwax("models", "nets.py", "SCAL").out == "nets.py:scaled\n"
    none = lostwax("models", "nets.py", "zzz")
    assert (none.code, none.err) == (4, "nets.py has no model with 'zzz' in its name\n")
    assert "there is no file" in lostwax("models", "gone.py").err
    assert "instead: " in lostwax("models", "tim").err
    assert "bad.py" in lostwax("models", "--json").json["result"]["places"]


def test_names_are_completed(folder):
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text("{}")
    assert complete_name("ne") == ["nets.py:"]
    assert complete_name("nets.py:ti") == ["nets.py:tiny"]
    assert complete_name("ti", ["nets.py", ":"]) == ["tiny"], "bash splits words at colons"
    assert complete_name(":", ["nets.py"])[:2] == ["Net", "Reads"]
    assert complete_name("hf:") == ["hf:llama"]
    assert complete_name("zz:") == []


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("lostwax export nets.py:sc", "nets.py:scaled"),
        ("lostwax check a.pt2 nets.py : sc", "scaled"),
        ("lostwax lower a.pt2 --backend xn", "xnnpack"),
        ("lostwax models nets", "nets.py"),
        ("lostwax explain LW010", "LW0101"),
        ("lostwax do", "doctor"),
    ],
)
def test_a_shell_is_answered(folder, monkeypatch, capsys, line, wanted):
    words = line.split()
    monkeypatch.setenv("_LOSTWAX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        app(prog_name="lostwax")
    assert wanted in capsys.readouterr().out.split()


def test_the_doctor_tells_what_is_here(lostwax):
    ran = lostwax("doctor", "--json")
    told = ran.json["result"]
    assert ran.code == 0, told["problems"]
    assert sys.modules["torch"].__version__.startswith(told["packages"]["torch"].partition("+")[0])
    assert told["backends"]["xnnpack"] == "ready"
    assert "cpu" in told["devices"]
    assert "onnx-ir" in told["optional"]
    assert lostwax("doctor").out.endswith("nothing is wrong\n")


def test_the_doctor_tells_what_is_wrong(lostwax, monkeypatch):
    monkeypatch.setattr(listing, "_list_needed", lambda: ["torch", "flatbufers>=2"])
    monkeypatch.setattr(listing, "_OPTIONAL", {"nowhere": "nothing"})
    monkeypatch.setattr("lostwax.torch_version.TORCH", (9, 9))
    ran = lostwax("doctor")
    assert ran.code == 4
    assert "  flatbufers     MISSING\n" in ran.out
    assert "flatbufers is not installed: pip install 'flatbufers>=2'" in ran.out
    assert "was not tested with lostwax; 2.11" in ran.out
    assert "  nowhere        nothing; pip install nowhere" in ran.out
