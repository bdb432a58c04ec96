"""Expressions in files that real torch writes: every one is read, and means what its hint says."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from lostwax import sym
from lostwax.sym.text.show import to_srepr
from lostwax.sym.text.srepr import parse_srepr

torch = pytest.importorskip("torch")


class Sizes(torch.nn.Module):
    """Views, padding, pooling, slices and data-dependent sizes: a little of each."""

    def forward(self, x, n):
        b, s = x.shape
        padded = torch.nn.functional.pad(x, (0, (s + 7) // 8 * 8 - s))
        pooled = torch.nn.functional.avg_pool1d(x[None], 2)[0]
        picked = x[n > 0].nonzero()
        ones = x.new_ones(torch.sym_max(b, s), s % 3 + 1, s // 2 * b)
        both = torch.cat([x, x[: b // 2]])
        return padded, pooled, picked, ones, both, x[:, 1:], x.reshape(-1), s * s - 1


def expressions(node):
    """Every (text, hint) below a JSON value."""
    if isinstance(node, dict):
        if "expr_str" in node:
            yield node["expr_str"], node.get("hint")
        for child in node.values():
            yield from expressions(child)
    elif isinstance(node, list):
        for child in node:
            yield from expressions(child)


@pytest.fixture(scope="module")
def written():
    auto = torch.export.Dim.AUTO
    dims = {"x": {0: auto, 1: auto}, "n": {0: auto}}
    program = torch.export.export(
        Sizes(), (torch.ones(6, 20), torch.ones(6)), dynamic_shapes=dims, strict=False
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    with zipfile.ZipFile(file) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("models/model.json"))
        found = expressions(json.loads(archive.read(name)))
        return {text: (hint or {}).get("as_int") for text, hint in found}


def test_every_expression_is_read_and_agrees_with_its_hint(written):
    env, names = sym.ShapeEnv(), {}

    def make(name, assumptions):
        if name.startswith("u"):
            names[name] = env.unbacked(name, lo=0)
        else:
            text = next(t for t in written if t.startswith(f"Symbol('{name}'"))
            names[name] = env.symbol(name, hint=written[text], lo=int("positive" in assumptions))
        return names[name]

    assert len(written) > 10
    for text, hint in written.items():
        e = parse_srepr(text, names, make)
        if hint is not None:
            assert (e if isinstance(e, int) else e.hint) == hint, text


def test_what_we_write_means_the_same_to_torch(written):
    """Our text through torch's own reader, back in torch's words."""
    sympy = pytest.importorskip("sympy")
    functions = dict(vars(pytest.importorskip("torch.utils._sympy.functions")))
    env = sym.ShapeEnv()
    names = {}

    def make(name, _):
        return names.setdefault(name, env.symbol(name, hint=7, lo=None))

    for text in written:
        ours = parse_srepr(text, names, make)
        theirs = sympy.sympify(to_srepr(ours), locals=functions)
        assert parse_srepr(sympy.srepr(theirs), names) is ours, text
