"""Scripts as people write them for `torch.export`, without a word of lostwax. Each returns what it
computed. Models are made anew in each, with weights that are always the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.utils._pytree import tree_flatten


def seeded(module: type[nn.Module], *args: Any) -> nn.Module:
    torch.manual_seed(0)
    return module(*args)


def assert_same(found: Any, expected: Any, **tolerance: float) -> None:
    """What two runs of a script return: tensors are close, everything else is equal."""
    leaves, tree = tree_flatten(found)
    others, other_tree = tree_flatten(expected)
    assert tree == other_tree
    for leaf, other in zip(leaves, others, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(leaf, other, **tolerance)
        else:
            assert leaf == other


class MyModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(10, 10)

    def forward(self, x, y):
        return nn.functional.relu(self.lin(x + y), inplace=True)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.relu(self.bn(self.conv(x))).mean((2, 3)))


def tutorial(folder: Path) -> Any:
    """PyTorch's export tutorial: export, look at it, run it, decompose it, catch what fails."""
    args = torch.ones(3, 10), torch.ones(3, 10)
    ep = torch.export.export(seeded(MyModule), args)
    assert isinstance(ep, torch.export.ExportedProgram)
    assert [n for n in ep.graph.nodes if n.target is torch.ops.aten.linear.default]
    assert ep.graph_signature.user_inputs == ("x", "y")
    assert list(ep.state_dict) == ["lin.weight", "lin.bias"]
    core = ep.run_decompositions()
    assert [n for n in core.graph.nodes if n.target is torch.ops.aten.addmm.default]
    caught = ""
    try:
        ep.module()(torch.ones(4, 10), torch.ones(4, 10))
    except AssertionError as error:
        caught = type(error).__name__
    return ep.module()(*args), core.module()(*args), caught


def dynamic_shapes(folder: Path) -> Any:
    """All the ways to say what varies, and the error that says that it cannot."""
    x, y = torch.arange(30.0).reshape(3, 10), torch.ones(3, 10)
    batch = Dim("batch", min=1, max=64)
    collection = torch.export.ShapesCollection()
    collection[x] = (batch, None)
    collection[y] = {0: batch}
    more = torch.export.AdditionalInputs()
    more.add((torch.ones(5, 10), torch.ones(5, 10)))
    automatic = {"x": {0: Dim.AUTO}, "y": (Dim.AUTO, Dim.STATIC)}
    results: list[Any] = []
    for shapes in ({"x": {0: batch}, "y": {0: batch}}, automatic, collection, more):
        ep = torch.export.export(seeded(MyModule), (x, y), dynamic_shapes=shapes)
        assert len(ep.range_constraints) == 1
        results.append(ep.module()(torch.ones(7, 10), torch.ones(7, 10)))
    try:
        torch.export.export(
            seeded(MyModule), (x, y), dynamic_shapes=({1: Dim("width")}, {1: Dim("width")})
        )
    except torch._dynamo.exc.UserError as error:
        results.append(error.error_type.name)
    draft = torch.export.draft_export(seeded(MyModule), (x, y))
    assert draft._report.successful()
    return *results, draft.module()(x, y)


def compile_helpers(folder: Path) -> Any:
    """A model that asks whether it is compiled or exported, checks a size, and is compiled."""

    class Helped(nn.Module):
        def forward(self, x, n):
            if torch.compiler.is_compiling():
                x = x + 1
            count = n.item()
            torch._check(count >= 0)
            torch._check(count <= 8)
            return x.sin(), torch.zeros(count) + (10 if torch.compiler.is_exporting() else 0)

    args = torch.ones(3), torch.tensor(4)
    ep = torch.export.export(Helped(), args)
    compiled = torch.compile(ep.module(), backend="eager")
    return ep.module()(*args), compiled(torch.zeros(3), torch.tensor(5))


def passes(folder: Path) -> Any:
    """A pass of one's own over the graph module, and one of torch's."""
    from torch.export.passes import move_to_device_pass

    ep = torch.export.export(seeded(MyModule), (torch.ones(3, 10), torch.ones(3, 10)))
    for node in ep.graph.nodes:
        if node.target is torch.ops.aten.add.Tensor:
            node.target = torch.ops.aten.sub.Tensor
    ep.graph_module.recompile()
    ep.validate()
    moved = move_to_device_pass(ep, "cpu")
    return moved.module()(torch.arange(30.0).reshape(3, 10), torch.ones(3, 10))


def unflatten_and_train(folder: Path) -> Any:
    """The modules back, one replaced, and a few steps of training, with a batch norm."""
    ep = torch.export.export(
        seeded(ConvNet).train(), (torch.ones(4, 3, 6, 6),), preserve_module_call_signature=("head",)
    )
    losses = []
    unflattened = torch.export.unflatten(ep)
    unflattened.head = seeded(nn.Linear, 8, 4)
    for module in (ep.module(), unflattened):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        torch.manual_seed(1)
        for _ in range(3):
            loss = module(torch.randn(4, 3, 6, 6)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    state = ep.module().state_dict()
    return losses, [state[name] for name in sorted(state)]


def save_and_load(folder: Path) -> Any:
    """A file, with another one inside, read in place of the program."""
    ep = torch.export.export(
        seeded(ConvNet).eval(), (torch.ones(2, 3, 6, 6),), dynamic_shapes=({0: Dim("n", max=9)},)
    )
    path = folder / "model.pt2"
    torch.export.save(ep, path, extra_files={"labels.txt": "cat\ndog"})
    extra = {"labels.txt": ""}
    loaded = torch.export.load(path, extra_files=extra)
    return loaded.module()(torch.ones(5, 3, 6, 6)), extra["labels.txt"]


@dataclass
class Batch:
    tokens: torch.Tensor
    lengths: torch.Tensor


torch.export.register_dataclass(Batch, serialized_type_name="tests.interop.scripts.Batch")


class Wild(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, batch: Batch, *, scale: float = 1.0, extra: dict | None = None):
        self.seen += batch.tokens.shape[0]
        x = self.embed(batch.tokens)
        out, _ = self.attention(x, x, x, need_weights=False)
        steps = torch.arange(batch.tokens.shape[1])
        mask = steps[None] < batch.lengths[:, None]
        pooled = (out * mask[..., None]).sum(1) / batch.lengths[:, None]
        if extra is not None:
            pooled = pooled + extra["bias"]
        return {"pooled": pooled * scale, "mask": mask}


def in_the_wild(folder: Path) -> Any:
    """What deployments do: a dataclass and keywords, a varying length, a counter, a device."""
    model = seeded(Wild).eval()
    batch = Batch(torch.ones(2, 5, dtype=torch.long), torch.tensor([5, 3]))
    kwargs = {"scale": 0.5, "extra": {"bias": torch.ones(8)}}
    length = Dim("length", min=2, max=32)
    shapes = {"batch": [{1: length}, None], "scale": None, "extra": {"bias": None}}
    with torch.no_grad():
        ep = torch.export.export(model, (batch,), kwargs, dynamic_shapes=shapes)
    module = ep.module()
    longer = Batch(torch.arange(14).reshape(2, 7), torch.tensor([7, 1]))
    results = [module(longer, **kwargs), module(batch, **kwargs)]
    names = [spec.target for spec in ep.graph_signature.input_specs if spec.target]
    return results, module.seen, sorted(names)


CHEAP = [
    *(tutorial, dynamic_shapes, compile_helpers, passes, unflatten_and_train, save_and_load),
    in_the_wild,
]
