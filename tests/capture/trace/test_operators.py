"""Operators of programs: which are recorded, kept whole, or left out; random ones."""

from __future__ import annotations

import copy
import io
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lostwax
from lostwax.capture import export
from lostwax.errors import CaptureError, InputValueError
from tests.capture.compare import exported
from tests.capture.small import Of, X, same, targets
from tests.fresh import run_python

aten = torch.ops.aten


def test_random_operators_stay() -> None:
    program = same(Of(lambda self, x: x + torch.rand(4) * torch.randn_like(x)), X)
    assert {"aten.rand", "aten.randn_like"} <= set(targets(program))
    dropped = export(Of(lambda self, x: F.dropout(x, 0.5, training=True)), (X,)).module()
    assert not torch.equal(dropped(X), dropped(X))


def test_random_numbers_are_drawn_in_the_order_of_memory() -> None:
    same(Of(lambda self, x: F.dropout(x.t(), 0.5) + torch.empty(3, 4).t().uniform_()), X)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)
    same(layer, torch.randn(2, 5, 4))


def test_keep_leaves_composites_whole() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    program = export(net, (X,), keep=[aten.linear.default, aten.layer_norm.default])
    assert targets(program) == ["aten.linear", "aten.layer_norm", "aten.linear"]
    torch.testing.assert_close(program.module()(X), net(X))
    q = torch.randn(2, 2, 5, 8)
    program = export(
        Of(lambda self, q: F.scaled_dot_product_attention(q, q, q)), (q,),
        keep=[aten.scaled_dot_product_attention.default],
    )  # fmt: skip
    assert targets(program) == ["aten.scaled_dot_product_attention"]
    program = export(nn.Conv2d(3, 4, 3), (torch.randn(1, 3, 8, 8),), keep=[aten.conv2d.default])
    assert targets(program) == ["aten.conv2d"]


VIEWS: dict[str, tuple[Any, Any]] = {
    "flatten": (aten.flatten.using_ints, lambda x: x.flatten()),
    "reshape": (aten.reshape.default, lambda x: x.reshape(4, -1)),
    "reshape, a copy": (aten.reshape.default, lambda x: x.t().reshape(-1)),
    "narrow": (aten.narrow.default, lambda x: x.narrow(1, -3, 2)),
    "chunk": (aten.chunk.default, lambda x: x.chunk(2, 1)[1]),
    "to": (aten.to.dtype, lambda x: x.to(torch.float32)),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("writes", [False, True])
def test_composites_that_are_views_are_kept_as_such(name: str, writes: bool) -> None:
    """What they share with their argument is shared in the program, too."""
    overload, function = VIEWS[name]

    def forward(self: Any, x: torch.Tensor) -> Any:
        y = function(x)
        if writes:
            y.mul_(2)
            x.add_(1)
            y.sub_(3)
        return y, x * 2

    program = exported(Of(forward), X.clone(), keep=[overload])
    program.validate()
    shown = "aten.view" if writes and name in ("flatten", "reshape") else str(overload)
    assert shown.removesuffix(".default") in targets(program)


def test_what_cannot_be_kept_is_taken_apart() -> None:
    keep = [torch.ops.aten.broadcast_tensors.default, torch.ops.aten.item.default]

    def forward(x: torch.Tensor) -> Any:
        return torch.broadcast_tensors(x, x[0])[1] * x.sum().item()

    torch.testing.assert_close(export(forward, (X,), keep=keep).module()(X), forward(X))


def test_a_composite_that_does_nothing_is_kept_and_shares_memory() -> None:
    keep = [aten.dropout.default]
    assert targets(export(nn.Dropout(), (X,), keep=keep)) == ["aten.dropout"]

    def forward(self: Any, x: torch.Tensor) -> Any:
        y = F.dropout(x, 0.5, False)
        y.add_(1)
        x.mul_(2)
        return y + 1

    program = exported(Of(forward), X.clone(), keep=keep)
    assert "aten.dropout" in targets(program)
    assert targets(export(nn.Dropout().eval(), (X,), keep=keep)) == ["aten.dropout"]
    assert not targets(export(nn.Dropout().eval(), (X,), keep=keep).run_decompositions())


def test_a_write_through_a_kept_view_goes_through_its_parts() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        x.movedim(0, 1)[1:].add_(1)
        return x * 2

    exported(Of(forward), X.clone(), keep=[aten.movedim.int])
    program = export(lambda x: x.movedim(0, 1) + 1, (X,), keep=[aten.movedim.int])
    assert targets(program) == ["aten.movedim.int", "aten.add.Tensor"]


@pytest.mark.parametrize("name", ["flatten", "reshape"])
def test_where_eager_would_copy_what_is_written_through_a_kept_view_is_refused(name: str) -> None:
    overload, function = VIEWS[name]

    def forward(x: torch.Tensor) -> Any:
        function(x).mul_(2)
        return x * 1

    module = export(forward, (X.clone(),), keep=[overload]).module()
    other = torch.ones(4, 3).t()
    with pytest.raises(InputValueError, match="takes a view that these do not allow"):
        module(other)
    assert torch.equal(other, torch.ones(3, 4))


def test_what_writes_unseen_is_not_kept() -> None:
    keep = [torch.ops.aten.batch_norm.default]
    norm = nn.BatchNorm1d(4)
    with pytest.raises(CaptureError, match=r"cannot be kept[\s\S]*training[\s\S]*eval\(\)"):
        export(norm, (X,), keep=keep)
    assert targets(export(norm.eval(), (X,), keep=keep)) == ["aten.batch_norm"]
    module = nn.InstanceNorm1d(4, track_running_stats=True)
    with pytest.raises(CaptureError, match=r"aten\.instance_norm\.default cannot be kept"):
        export(module, (torch.ones(2, 4, 3),), keep=[aten.instance_norm.default])
    for wrong in ([aten.linear], ["linear"], aten.linear.default):
        with pytest.raises(TypeError, match=r"keep= takes a list[\s\S]*linear\.default"):
            export(nn.Linear(4, 4), (X,), keep=wrong)


def test_unread_operators_are_left_out() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        _ = x.cos() @ x.t()
        return x.sin()

    assert targets(same(Of(forward), X)) == ["aten.sin"]


def test_measuring_is_no_part_of_a_program() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("part"):
            return x + 1

    assert targets(same(Of(forward), X)) == ["aten.add.Tensor"]


# torch's own check, in words of its own since 2.14, or the first line of ours
CHECKED = r"satisfy its distribution constraint|is required at .*test_operators.py:\d+ in forward"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile switches the checks of distributions off, for the whole process."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


@pytest.mark.usefixtures("checked")
def test_distributions_check_their_arguments_when_the_program_runs() -> None:
    def forward(self: Any, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(mean, std).rsample()

    program = same(Of(forward), X, X.abs() + 1)
    with pytest.raises(RuntimeError, match=CHECKED):
        program.module()(X, -X.abs() - 1)


def test_random_numbers_of_python_are_told_of_and_put_back() -> None:
    for draw in (lambda: random.random(), lambda: np.random.rand()):
        before, array = random.getstate(), np.random.get_state()[1].copy()
        with pytest.warns(UserWarning, match=r"random; the number is baked into"):
            export(lambda x, draw=draw: x * float(draw()), (X,))
        assert random.getstate() == before
        assert (np.random.get_state()[1] == array).all()


_HELD = """
import random, warnings
import numpy as np, torch
from lostwax import export

for draw in (random.random, np.random.rand):
    before, array = random.getstate(), np.random.get_state()[1].copy()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        export(lambda x, draw=draw: x * float(draw()), (torch.ones(2),))
    assert any("random; the number is baked into" in str(each.message) for each in told)
    assert random.getstate() == before
    assert (np.random.get_state()[1] == array).all()
"""


def test_random_functions_that_are_held_are_put_back_where_no_other_thread_is() -> None:
    # In a process of its own: the test runner has threads.
    run_python(_HELD)


_LOADED_MEANWHILE = """
import sys, warnings
import numpy as np, torch
from lostwax import export

def told(f):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        export(f, (torch.ones(2),))
    return [each for each in told if "numpy.random; the number is" in str(each.message)]

assert not told(lambda x: x + 1)
assert "numpy.random" not in sys.modules
"""


@pytest.mark.parametrize(
    ("draw", "is_told"),
    [
        ("np.random.rand()", True),
        ("[np.random.seed(0), np.random.rand()][1]", True),
        ("len(np.random.__name__)", False),
    ],
)
def test_a_generator_that_the_export_itself_loads_is_told_of(draw: str, is_told: bool) -> None:
    tried = f"""
assert bool(told(lambda x: x * float({draw}))) is {is_told}
assert "numpy.random" in sys.modules
drawn = np.random.rand()
assert drawn not in np.random.RandomState(0).rand(3)
"""
    run_python(_LOADED_MEANWHILE + tried)


def test_random_functions_that_are_held_are_told_of() -> None:
    # Here threads of the test runner may live beside: nothing is put back then.
    for draw in (random.random, np.random.rand):
        with pytest.warns(UserWarning, match=r"baked into the program. torch.rand would be drawn"):
            export(lambda x, draw=draw: x * float(draw()), (X,))


def test_literals_that_are_returned_are_new_in_each_run() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        literal = torch.tensor([1.0, 2.0])
        return literal, literal[1:], x

    module = export(Of(forward), (X,)).module()
    whole, part, _ = module(X)
    whole.add_(1)
    assert part.tolist() == [3.0]
    assert module(X)[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, z: z.conj().imag,
        lambda self, z: z[1:].conj()[1:].real + z.conj().conj().imag[2:],
        lambda self, z: torch.view_as_real(z.conj().resolve_conj()),
        lambda self, z: z.clone().conj().imag.mul_(2),
    ],
)
def test_conjugates_that_torch_has_not_computed_yet(forward: Any) -> None:
    same(Of(forward), torch.randn(4, dtype=torch.complex64))


def test_seeds_and_generators_are_refused() -> None:
    before = torch.get_rng_state()
    for forward in (
        lambda x: (torch.manual_seed(3), x)[1],
        lambda x: x * torch.seed(),
        lambda x: x * torch.initial_seed(),
        lambda x: (torch.set_rng_state(torch.get_rng_state()), x)[1],
        lambda x: torch.rand(3, generator=torch.Generator().manual_seed(1)) + x,
    ):
        with pytest.raises(CaptureError, match=r"no random generator[\s\S]*test_operators.py"):
            export(forward, (torch.ones(3),))
    assert torch.equal(before, torch.get_rng_state())


def test_scalar_tensors_are_computed_by_the_program() -> None:
    program = same(Of(lambda self, x: torch.ops.aten.scalar_tensor(2.0) + x), X)
    assert targets(program) == ["aten.scalar_tensor", "aten.add.Tensor"]


def test_a_mask_is_used_whether_it_is_causal_or_not() -> None:
    model = nn.Transformer(4, 2, 1, 1, 8, batch_first=True).eval()
    x, causal = torch.randn(2, 5, 4), nn.Transformer.generate_square_subsequent_mask(5)
    program = export(model, (x, x), {"tgt_mask": causal}).module()
    for mask in (causal, causal.t(), torch.zeros(5, 5)):
        torch.testing.assert_close(program(x, x, tgt_mask=mask), model(x, x, tgt_mask=mask))


def test_deep_copies_are_copies() -> None:
    def forward(self: Any, batch: Any) -> Any:
        mine = copy.deepcopy(batch)
        mine["x"].add_(1)
        return mine, batch["x"] * 2

    same(Of(forward), {"x": X, "n": 3})


def test_a_conjugate_is_not_viewed_as_real() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match=r"use self.resolve_conj\(\)"):  # as eager
        export(lambda x: torch.view_as_real(x.conj()), (x,))
    same(Of(lambda self, x: torch.view_as_real(x.conj().conj())), x)
    same(Of(lambda self, x: torch.view_as_real(x.conj().resolve_conj())), x)


@pytest.mark.usefixtures("checked")
def test_matrices_of_distributions_are_checked_when_the_program_runs() -> None:
    def forward(self: Any, x: torch.Tensor, matrix: torch.Tensor) -> Any:
        return torch.distributions.MultivariateNormal(x, matrix).log_prob(x * 2)

    program = same(Of(forward), torch.ones(3), torch.eye(3))
    with pytest.raises(RuntimeError, match=CHECKED):
        program.module()(torch.ones(3), -torch.eye(3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_observers_need_their_size_first() -> None:
    quantization = torch.ao.quantization
    model = nn.Sequential(nn.Linear(4, 3)).train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    quantization.prepare_qat(model, inplace=True)
    with pytest.raises(CaptureError, match=r"instead: call the module once before exporting"):
        export(model, (X,))
    model(X)
    exported(model, X)


AUTO = {"x": {0: lostwax.Dim.AUTO}}
EDGES = [torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 0.3, 0.6, 1.0])]


@pytest.mark.parametrize(
    "count",
    [
        lambda x: torch.histogramdd(x, bins=[3, 4]),
        lambda x: torch.histogramdd(x, bins=3, range=[0.0, 1.0, 0.0, 1.0]),
        lambda x: torch.histogramdd(x, bins=[3, 4], weight=x[:, 0], density=True),
        lambda x: torch.histogramdd(x, bins=EDGES),
    ],
)
def test_histograms_of_several_dimensions(count: Any) -> None:
    """The edges are a list, whether they are computed or given."""
    net = Of(lambda self, x: (*count(x),))
    program = export(net, (torch.rand(9, 2),), dynamic_shapes="n")
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    x = torch.rand(20, 2)
    for module in (program.module(), lostwax.load(file).module()):
        (got, edges), want = module(x), count(x)
        assert torch.equal(got, want.hist)
        assert all(map(torch.equal, edges, want.bin_edges))


def test_sizes_that_cpp_asked_for_are_no_attribute_of_the_users(recwarn: Any) -> None:
    """C++ keeps them on the tensor that it asked."""
    program = export(Of(lambda self, x: torch.cov(x)), (X,), dynamic_shapes=AUTO)
    torch.testing.assert_close(program.module()(X), torch.cov(X))
    assert not [w for w in recwarn if "capsule" in str(w.message)]
