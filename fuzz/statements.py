"""The statements of random programs, in tables of templates; `grow.py` says what the holes are.

A new kind of statement is a new line here. Nothing that eager does not define may be in it: no
random numbers, no uninitialised memory, no two writes to one place.
"""

from __future__ import annotations

# ------------------------------------------------------------------------------------------ inputs

INPUTS = (
    "{x} = torch.randn(n, 3)", "{x} = torch.randn(n, 3)", "{x} = torch.randn(n)",
    "{x} = torch.randn(n)", "{x} = torch.randn(3)", "{x} = torch.randn(2, n)",
    "{x} = torch.randn(n, n)", "{x} = torch.randn(2, 3, n)", "{x} = torch.randint(0, 4, (n,))",
    "{x} = torch.randint(0, 3, (3,))", "{x} = torch.randn(n, 3) > 0", "{x} = torch.randn(n) > 0",
    "{x} = [torch.randn(n), torch.randn(n, 3)]", '{x} = {"output": torch.randn(n), "self": torch.randn(3)}',
    "{x} = torch.randn(1, 2, n, n)", "{x} = torch.tensor(2)", "{x} = torch.randn(())",
)  # fmt: skip
SHARED = (
    "{x} = {y}", "{x} = {y}", "{x} = {y}.view(-1)", "{x} = {y}[...]", "{x} = {y}.detach()",
    "{x} = {y}[:2]", "{x} = {y}.mT", "{x} = {y}.t()", "{x} = {y}[0]", "{x} = {y}[..., :1]",
    "{x} = {y}.expand(2, *{y}.shape)",
)  # fmt: skip
"""Arguments that have to do with one before them."""
LAYOUTS = (
    "{x} = {x}.mT.contiguous().mT", "{x} = torch.stack([{x}, {x}], -1)[..., 0]",
    "{x} = torch.cat([{x}.flatten(), {x}.flatten()])[{x}.numel():].view({x}.shape)",
    "{x} = {x}[..., :1].expand({x}.shape)", "{x} = {x}[:1].expand({x}.shape)",
    "{x} = {x}.flip(0)", "{x} = {x}.contiguous(memory_format=torch.channels_last)",
    "{x} = {x}.requires_grad_()", "{x} = {x} * 1 if {x}.requires_grad else {x}",
    "{x} = {x}.clone()", "{x} = {x}.requires_grad_()",
)  # fmt: skip
"""The same values, in memory in another way."""

# ------------------------------------------------------------------------------------------- plain

COMPUTE = (
    "{new} = {t1} + {t2}", "{new} = {t1} * {t2}", "{new} = {t} * {c}", "{new} = {t}.relu()",
    "{new} = {t}.sum()", "{new} = {t}.sum(0)", "{new} = {t}.mean(-1, keepdim=True)",
    "{new} = torch.cat([{t1}, {t2}])", "{new} = torch.stack([{t1}, {t2}])", "{new} = {t}.sin()",
    "{new} = torch.where({t} > 0, {t}, {c})", "{new} = {t1} @ {t2}", "{new} = {t}.clone()",
    "{new} = torch.zeros_like({t})", "{new} = {t}.softmax(-1)", "{new} = {t}.cumsum(0)",
    "{new} = {t} + torch.arange({t}.shape[-1])", "{new} = {t}.flip(0)", "{new} = {t}.sort(0)[0]",
    "{new} = torch.ones(2, 3)", "{new} = {t}.new_zeros(3)", "{new} = {t}.max(0)[0]",
    "{new} = {t}.double().float()", "{new} = {i} * 2", "{new} = {i}.float()", "{new} = {m}.float()",
    "{new} = {i} % 3", "{new} = ({t} * 2).long()", "{new} = F.layer_norm({t}, {t}.shape[-1:])",
    "{new} = {t} / {t}.shape[0]", "{new} = {t} * CONFIG['scale']", "{new} = sum(CONFIG['parts']) * {t}",
    "{new} = torch.einsum('...i,...i->...', {t}, {t})", "{new} = F.gelu({t})", "{new} = -{t}",
    "{new} = {t}.detach()", "with torch.no_grad():\n    {new} = {t} * 2",
    "{new} = {M}.argmax(-1)", "{new} = torch.tensor([1.0, 2.0, 3.0])", "{new} = torch.tensor(2.0)",
)  # fmt: skip
VIEWS = (
    "{new} = {a}.view(-1)", "{new} = {a}.reshape(-1)", "{new} = {a}[0]", "{new} = {a}[1:]",
    "{new} = {a}[..., :2]", "{new} = {a}[::2]", "{new} = {a}.mT", "{new} = {a}.t()",
    "{new} = {a}.unsqueeze(0)", "{new} = {a}.unsqueeze(-1)", "{new} = {a}.squeeze()",
    "{new} = {a}.contiguous()", "{new} = {a}.detach()", "{new} = {a}.flatten()",
    "{new} = {a}.expand(2, *{a}.shape)", "{new} = {a}.view({a}.shape[0], -1)", "{new} = {a}",
    "{new} = {a}.narrow(0, 0, 1)", "{new} = {a}.to(torch.float32)", "{new} = {a}.data",
    "{new}, *_ = {a}.chunk(2)", "{new} = {a}.unbind(0)[0]", "{new} = {M}.diagonal()",
    "{new} = {a}.permute(*range({a}.dim() - 1, -1, -1))", "{new} = {a}.reshape(-1, {a}.shape[-1])",
    "{new} = {a}.float()", "{new} = {a}.view_as({a})",
)  # fmt: skip
WRITES = (
    "{w}.add_(1)", "{w}.mul_({c})", "{w} += 1", "{w}[0] = {c}", "{w}[..., 0] += 1",
    "{w}.copy_({like})", "{w}[:1] = {w}[-1:].clone()", "{w}.zero_()", "{w}.fill_({c})",
    "{w}[{w} > 0] = {c}", "{w}.masked_fill_({w} < 0, {c})", "{w}.relu_()", "{w}.clamp_(-1, 1)",
    "{w}.copy_({like}.clone())", "{w} *= 2", "{w}.add_({like}.clone())", "{w}.detach().add_(1)",
    "{w}.data.mul_(2)", "with torch.no_grad():\n    {w}.sub_(1)", "torch.add(out={w}, input={like}, other=1)",
    "{w}.index_add_(0, torch.tensor([0]), {w}[:1].clone())", "{w}.view(-1)[0] = {c}",
)  # fmt: skip
GARBAGE = (
    "gc.collect()",
    "del {l}",
    "del {l}\ngc.collect()",
    "{new} = [{l}, None]\n{new}.append({new})\ndel {new}",
)
"""Temporaries die, and others are made where they were."""

# ------------------------------------------------------------------------------------------- masks

MASKS = (
    "{new} = {t} > 0", "{new} = {t} <= 0", "{new} = {t} > {c}", "{new} = ~{m}",
    "{new} = {m1} & {m2}", "{new} = {m1} | {m2}", "{new} = {m1} ^ {m2}", "{new} = {m}.clone()",
    "{new} = {t1} > {t2}", "{new} = {t}.abs() < 0.7", "{new} = {i} > 1", "{new} = {i} == 0",
    "{new} = {m}.logical_not()", "{new} = torch.zeros_like({m})", "{new} = torch.ones_like({m})",
    "{m}.logical_not_()", "{m}[0] = True", "{m}[:2] = False", "{m1} ^= {m2}", "{m1}.copy_({m2})",
    "{m1} &= {m2}", "{m}.fill_(True)", "{m}[...] = ~{m}", "{m}.masked_fill_({m}, False)",
)  # fmt: skip
SIZES = (
    "{new} = {t}[{m}]", "{new} = {t}[{m}]", "{new} = {t}[~{m}]", "{new} = {t}[{t} > {c}]",
    "{new1}, {new2} = {t}[{t} > 0], {t}[{t} <= 0]", "{new1}, {new2} = {t}[{m}], {t}[~{m}]",
    "{new} = torch.masked_select({t}, {m})", "{new} = torch.masked_select({t}, {t} > {c})",
    "{new} = {t}.masked_select(~{m})", "{new} = {m}.nonzero()", "{new} = {t}.nonzero()",
    "{new} = torch.nonzero({m}, as_tuple=True)[0]", "{new} = torch.where({m})[0]",
    "{new} = torch.argwhere({m})[:, 0]", "{new} = torch.unique({i})", "{new} = {i}.unique()",
    "{new1}, {new2} = torch.unique({i}, return_inverse=True)",
    "{new1}, {new2} = torch.unique({i}, return_counts=True)",
    "{new} = torch.unique_consecutive({i})", "{new} = torch.unique({t}.round())",
    "{new} = torch.repeat_interleave({t}, {i}, 0)", "{new} = torch.repeat_interleave({i})",
    "{new} = torch.bincount({i})", "{new} = torch.unique({M}.round(), dim=0)",
    "{new} = int({i}.sum())", "{new} = {i}.sum().item()", "{new} = {i}.max().item()",
    "{new} = {m}.sum().item()", "{new} = int({m}.sum())", "{new} = (~{m}).sum().item()",
    "{new} = {u}.shape[0]", "{new} = len({u})", "{new} = {u}.numel()", "{new} = {u}.size(0)",
    "{new} = {t}.sum().item()", "{new} = {t}.mean().item()", "{new} = {t}.shape[0]",
    "{new} = [{t}[{new}] for {new} in ({t} > 0, {t} <= 0, {t} > 1)][{pick}]",
    "{new} = [{t}[{t} > z].sum() for z in range(-2, 3)]\n{new} = torch.stack({new})",
    "{new} = [torch.masked_select({t}, {t} > z).shape[0] for z in range(-2, 3)]\n{new} = sum({new})",
    "{new} = {t}.tolist() if {t}.numel() < 1 else {t}[{t} > 0]",
)  # fmt: skip
SIZED = (
    "{new} = {u}.sum() / {u}.shape[0]", "{new} = {u}.mean()", "{new} = {t} * {u}.shape[0]",
    "{new} = {t} / ({u1}.shape[0] + {u2}.numel() + 1)", "{new} = torch.cat([{u1}, {u2}])",
    "{new} = {u}.new_zeros({u}.shape[0])", "{new} = torch.outer({u1}, {u2})",
    "{new} = torch.einsum('i,j->ij', {u1}, {u2})", "{new} = torch.kron({u1}, {u2})",
    "{new} = torch.tensordot({u1}, {u2}, 0)", "{new} = torch.meshgrid({u1}, {u2}, indexing='ij')[0]",
    "{new} = torch.meshgrid({u1}, {u2}, indexing='ij')[1]",
    "{new} = {u1}.unsqueeze(0) * {u2}.unsqueeze(1)", "{new} = {u1}[:, None] - {u2}[None]",
    "{new} = torch.cdist({u1}[:, None], {u2}[:, None])", "{new} = torch.cartesian_prod({u1}, {u2})",
    "{new} = F.scaled_dot_product_attention({u1}[None, :, None], {u2}[None, :, None], {u2}[None, :, None])",
    "{new} = torch.zeros({u1}.shape[0] + {u2}.shape[0])", "{new} = torch.ones({u1}.shape[0], {u2}.shape[0])",
    "{new} = torch.zeros_like({t}).masked_scatter({m}, {u})", "{new} = {t}.masked_scatter({m}, {u})",
    "{new} = {t}.clone()\n{new}[{m}] = {t}[{m}] * 2", "{new} = torch.zeros_like({t})\n{new}[{m}] = {u}",
    "{new} = {t}.clone()\n{new}[~{m}] = 0", "{new} = {u}.view(-1, 1)", "{new} = {u}.expand(2, -1)",
    "{new} = {u}.cumsum(0)", "{new} = {u}.sort()[0]", "{new} = {u}.flip(0)", "{new} = {u} * 2",
    "{new} = F.pad({u}, (0, 3))", "{new} = {u}.softmax(0)", "{new} = {u}.reshape(1, -1)",
    "{new} = torch.arange({k})", "{new} = torch.zeros({k})", "{new} = torch.ones({k}, 2)",
    "{new} = {t}[:{k}]", "{new} = {t} * {k}", "{new} = {t} + {f}", "{new} = {k1} + {k2}",
    "{new} = {k1} * {k2}", "{new} = torch.full(({k},), 2.0)", "{new} = {k} // 2", "{new} = {f} * 2",
    "{new} = torch.tensor({k})", "{new} = torch.arange({u}.shape[0]).float() * {u}",
    "{new} = {t}.repeat({k})", "{new} = torch.eye({k})", "{new} = {t}.expand({k}, *{t}.shape)",
    "{new} = {u}[{u} > 0]", "{new} = {u}[{u} <= 0].sum()", "torch._check({k} >= 0)",
    "{new} = torch.index_select({t}, 0, {i})", "{new} = {t}[{i}]", "{new} = max({k1}, {k2})",
    "{new} = torch.segment_reduce({u}, 'sum', lengths=torch.tensor([{u}.shape[0]]))",
)  # fmt: skip
"""What is done with sizes that data have given. `{u}` is a vector of the program's own."""

# ------------------------------------------------------------------------------------------- state

STATE = (
    'self.register_buffer("{attr}", torch.randn(3))', 'self.register_buffer("{attr}", torch.zeros(3))',
    'self.register_buffer("{attr}", torch.randn(2, 3))', 'self.register_buffer("{attr}", torch.zeros(()))',
    'self.register_buffer("{attr}", torch.zeros(3), persistent=False)',
    'self.register_buffer("{attr}", torch.randn(2, 3), persistent=False)',
    'self.register_buffer("{attr}", torch.randn(3, 2).t())', 'self.register_buffer("{attr}", None)',
    "self.{attr} = nn.Parameter(torch.randn(3))", "self.{attr} = nn.Parameter(torch.randn(3, 3))",
    "self.{attr} = nn.Parameter(torch.randn(3), requires_grad=False)", "self.{attr} = torch.randn(3)",
    "self.{attr} = [torch.randn(3), torch.zeros(3)]", 'self.{attr} = {{"a": torch.randn(3), "b": 2.0}}',
    "self.{attr} = (torch.randn(3), torch.randn(()))", "self.{attr} = 0", "self.{attr} = 1.5",
    "self.{attr} = True", "self.{attr} = [1.0, 2.0]", "self.{attr} = Memory()", "self.{attr} = Window()",
    "self.{attr} = Counter()", "self.{attr} = Gated()", "self.{attr} = nn.Linear(3, 3)",
    "self.{attr} = nn.BatchNorm1d(3)", "self.{attr} = nn.ModuleList([Memory(), nn.Linear(3, 3)])",
    "self.{attr} = nn.Sequential(nn.Linear(3, 3), nn.ReLU())", "self.{attr} = nn.Dropout(0.5).eval()",
    "self.{attr} = nn.ParameterList([torch.randn(3), torch.randn(3)])",
    "self.{attr} = nn.MultiheadAttention(3, 1)", "self.{attr} = nn.Embedding(4, 3)", "self.{attr} = nn.LayerNorm(3)",
    "self.{attr} = nn.GRU(3, 3)", "self.{attr} = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))",
    'self.{attr} = nn.ParameterDict({{"output": torch.randn(3), "add": torch.randn(3)}})',
)  # fmt: skip
TIED = (
    "self.{attr} = {h}.view(-1)", "self.{attr} = {h}[:2]", "self.{attr} = {h}[0]", "self.{attr} = {h}.data",
    "self.{attr} = {h}.detach()", "self.{attr} = [{h}[:1], {h}[1:]]", "self.{attr} = {{'v': {h}.view(-1)}}",
    'self.register_buffer("{attr}", {h}.detach())', 'self.register_buffer("{attr}", {h}.detach()[1:])',
    'self.register_buffer("{attr}", {b})', "self.{attr} = {p}", "self.{attr} = nn.Parameter({p}.data[:2])",
    "self.{attr} = nn.Parameter({p}.data)", "self.{attr} = {linear}\nself.{attr}.weight = {linear}.weight",
    "self.{attr} = {s}", "self.{attr} = nn.Linear(3, 3)\nself.{attr}.weight = {linear}.weight",
    "self.{attr} = nn.Parameter({p}.data.t())", "self.{attr} = [{h}, {h}]", "self.{attr} = {h}.view(-1)",
)  # fmt: skip
"""State that shares memory with state before it."""
KEEPING = (
    "{b} = {b} * 0.5 + {t}.mean()", "{b} = {b} + 1", "{b} = {b} * 0.9", "{b} += 1", "{b} = {like}",
    "{b} = {like}.clone()", "{b} = {like} + 1", "{b}.add_({like})", "{b}.copy_({like})", "{b}[0] = {c}",
    "{b1}, {b2} = {b2}, {b1}", "{b1}, {b2} = {b2}, {b1} + 1", "{b1}, {b2} = {b2} * 1, {b1}",
    "{b1}, {b2}, {b3} = {b2}, {b3}, {b1}", "{b} = {b}.detach()", "{b} = {b}.clone()", "{b}.mul_(2)",
    "{b} = {like}.detach()", "{h}.add_(1)", "{h}[0] += 1", "{h}.copy_({like})", "{number} += 1",
    "{new} = {t} * {number}", "{new} = {t} if {flag} else -{t}", "{new} = {t} + {h}", "{new} = {h} * 2",
    "{new} = {h}", "{new} = {h}.view(-1)", "{new} = {h}.detach()", "{new} = {h}[0]", "{new} = {h}[:2]",
    "{new} = {s}({t})", "{new} = {s}({t})", "{new} = {s}({i})", "{new}, {new1} = {s}({M})",
    "{new}, {new1} = {mha}({M}, {M}, {M})", "{new}, {new1} = {mha}({M1}, {M2}, {M2})", "{new}, {new1} = {s}({t})", "{new} = {t} @ {p}",
    "{new} = {t} * {p}", "{new} = F.linear({t}, {p})", "{new} = {t} * len({list})",
    "{new} = sum({list})", "{new} = {list}[-1] * {t}", "{new} = {t} * {dict}['b']", "{new} = {h}.clone()",
    "{b} = torch.roll({b}, 1)", "{b} = torch.cat([{b}[1:], {b}[:1]])", "{b} = {b}.flip(0)",
    "with torch.no_grad():\n    {h}.mul_(0.5)", "{b}.data = {like}.clone()", "{new} = {h}.sum()",
    "{list}.append({t})", "self.{attr} = {t}", "{list}[0] = {t}", "{b} = {b}.view({b}.shape)",
    "{b} = {like}.view({like}.shape)", "{new} = {b} = {like} * 2", "{b} = {x}",
)  # fmt: skip
CHANGES = (
    "with torch.no_grad():\n    for p in module.parameters():\n        p.mul_(0.5)",
    "with torch.no_grad():\n    for p in module.parameters():\n        p.add_(1)",
    "for p in module.parameters():\n    p.data.sub_(0.1)",
    "module.load_state_dict({{k: v + 1 for k, v in module.state_dict().items()}})",
    "module.load_state_dict({{k: v * 2 for k, v in module.state_dict().items()}})",
    "for b in module.buffers():\n    b.zero_()", "for b in module.buffers():\n    b.add_(1)",
    "list(module.buffers())[0].fill_(2)", "torch._foreach_mul_([p.data for p in module.parameters()], 2)",
    "gc.collect()",
)  # fmt: skip
"""What can be done to any module that has the state by its names."""
PYTHON_CHANGES = (
    "{number} = 3.0", "{number} += 1", "{flag} = not {flag}", "module.eval()", "module.train()",
    "{list}.append({list}[0])", "{list}[0] = {list}[-1]", "{dict}['b'] = 5.0", "{b} = torch.randn({b}.shape)",
    "{b} = {b} + 1", "{b} = {b}.double()", "{s}.register_forward_hook(lambda m, a, r: (r[0] if isinstance(r, tuple) else r) * 2)",
    "{s}.register_forward_pre_hook(lambda m, a: (a[0] + 1,))", "{drop}.p = 0.0", "{linear}.bias = None",
    "{linear}.weight = nn.Parameter(torch.ones(3, 3))", "{p}.requires_grad_(not {p}.requires_grad)",
    "CONFIG['scale'] = 5.0", "CONFIG['parts'].append(3.0)", "{s}.eval()", "{s}.train()",
    "{s}.scale = 7.0", "{p}.data = {p}.data * 2", "{s}.forward = lambda x: x * 3", "module.half().float()",
    "{h}.data = {h}.data.clone()", "module.requires_grad_(False)", "module.double().float()",
    "{s}.hidden.append(1)", "{s}.hidden[0] = torch.zeros(3)", "{linear}.weight.data = torch.zeros(3, 3)",
)  # fmt: skip
"""What only the module itself can be done: for `lostwax.capture`, which must notice."""

# ------------------------------------------------------------------------------------------- asked

ASKED = (
    "{new} = {x1} + 1 if {x1} is {x2} else {x1} - 1", "{new} = {a} * (2 if {a}.requires_grad else 3)",
    "{new} = {a} * {a}._version", "{new} = {a} * (2 if {a}.is_contiguous() else 3)",
    "{new} = {a} + {a}.stride()[0]", "{new} = {a} + {a}.storage_offset()", "{new} = {a} + (1 if {a}.is_leaf else 2)",
    "{new} = {a} + (1 if {a}.grad is None else 2)", "{new} = {a} * ({a1}.data_ptr() == {a}.data_ptr())",
    "{new} = {a} + (1 if type({a}) is torch.Tensor else 2)", "{new} = {a} + 1 if {a}.shape[0] > 2 else {a} - 1",
    "{new} = {a} + (1 if {x1}.shape == {x2}.shape else 2)", "{new} = {a} * (1 if {a}.dtype is torch.float32 else 2)",
    "{new} = {a} * (1 if {a}._base is None else 2)", "{new} = {a} * (2 if {a}.grad_fn is None else 3)",
    "{new} = {a} + {a}.element_size()", "{new} = {a} + (1 if {a} in ({x},) else 2) if {a}.numel() == 1 else {a}",
    "{new} = {a} + len({{id(x) for x in ({x1}, {x2})}})", "{new} = {a} + (1 if torch.is_grad_enabled() else 2)",
    "{new} = {a} * (2 if self.training else 3)",
)  # fmt: skip
"""What Python asks of a tensor, and would be baked in."""

NAMES = (
    "output", "self", "torch", "add", "getitem", "input", "args", "kwargs", "x", "placeholder",
    "call_function", "get_attr", "root", "graph", "module", "sym_size_int", "mul", "b_h1", "p_h1",
    "c_lifted_tensor_0", "lifted_tensor_0", "state", "inputs", "results", "operator", "builtins", "inf",
    "nan", "device", "dtype", "print", "len", "range", "float", "int", "bool", "tuple", "list", "dict",
    "type", "id", "math", "u0", "s0", "s27", "_", "__x", "x_1", "add_1", "fx", "aten", "weight", "bias",
    "ctx", "mod", "fn", "f", "F", "gc", "sum", "max", "min", "view", "size", "shape", "data", "grad",
    "arg0_1", "obj", "token", "match", "case", "_0", "copy_", "result", "buffer", "param", "constant",
    "mul_1", "cls", "name", "target", "node", "val", "meta", "buffers", "example",
    "True_", "sym", "Dim", "AUTO", "sub", "h", "rows", "inner", "clone", "neg", "item", "nonzero", "where",
    "lift_fresh_copy", "_assert_scalar", "_guards_fn", "_constants", "_runner", "sin", "relu",
)  # fmt: skip
"""Names that stand for something elsewhere."""
