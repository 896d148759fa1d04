"""Tests attention as a PyTorch operator: its results, tracing, batching, derivatives, and calls that must fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import attention_oracle
import pytest
import torch
from attention_oracle import Case
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

import kvscatter
import kvscatter.torch
from kvscatter.torch import attention
from support import refused

OPS = torch.ops.kvscatter
CASES = int(os.environ.get("KVSCATTER_ATTENTION_CASES", "400"))


def arguments(case: Case) -> tuple[Any, ...]:
    """Returns the arguments of the operator, in the schema's order."""
    names = [argument.name for argument in OPS.attention.default._schema.arguments[4:]]
    return (case.q, case.k, case.v, case.lengths, *(case.options.get(name) for name in names))


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_random_calls() -> None:
    for seed in range(CASES):
        case = attention_oracle.case(seed)
        expected = case.expected()
        got = attention(case.q, case.k, case.v, case.lengths, **case.options)
        assert got.is_contiguous()
        case.check(got, expected)
        if case.q.dtype is not torch.float64:
            native = kvscatter.attention(case.q, case.k, case.v, case.lengths, **case.options)
            assert torch.equal(got, native)


def test_random_calls_with_gradients() -> None:
    for seed in range(CASES):
        case = attention_oracle.case(seed)
        names = ("mask", "sink", "k_scale", "v_scale")
        leaves = {"q": case.q, "k": case.k, "v": case.v, **{name: case.options[name] for name in names}}
        leaves = {
            name: leaf.detach().requires_grad_()
            for name, leaf in leaves.items()
            if leaf is not None and leaf.is_floating_point()
        }
        options = {**case.options, **{name: leaf for name, leaf in leaves.items() if name in names}}
        k, v = leaves.get("k", case.k), leaves.get("v", case.v)
        got = attention(leaves["q"], k, v, case.lengths, **options)
        case.check(got, case.expected())
        assert got.requires_grad
        got.sum().backward()
        unused = ~case.used()
        for name, leaf in leaves.items():
            assert leaf.grad is not None and leaf.grad.isfinite().all(), (seed, name)
            if name in ("k", "v"):
                assert not case.by_head(leaf.grad)[unused].any(), (seed, name)


def test_hidden_values_have_no_influence_although_another_query_sees_them() -> None:
    q, k, v = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 8, 4), torch.randn(1, 1, 8, 4)
    k[0, 0, 1], v[0, 0, 1] = torch.nan, torch.inf  # the query of position 0 does not see the slot
    output = attention(q, k, v, [2])
    torch.testing.assert_close(output[0, 0, 0], v[0, 0, 0])
    assert output[0, 0, 1].isnan().all()


def test_strided_tensors_are_read_where_they_are() -> None:
    q, k, v = (torch.randn(2, rows, heads, 8).transpose(1, 2) for rows, heads in ((1, 4), (9, 2), (9, 2)))
    turned = k.transpose(2, 3).contiguous().transpose(2, 3)  # rows whose elements are not neighbours
    assert turned.stride(-1) != 1
    want = kvscatter.attention(q.contiguous(), k.contiguous(), v.contiguous(), [3, 9])
    assert torch.equal(attention(q, k, v, [3, 9]), want)
    assert torch.equal(attention(q, turned, v[:, :, :, :], torch.tensor([3, 9]).int()), want)
    assert torch.equal(attention(q, torch._neg_view(-k), v, [3, 9]), want)


def test_lists_may_be_sequences() -> None:
    q, blocks = torch.randn(2, 2, 1, 4), torch.randn(4, 1, 2, 4)
    want = attention(
        q,
        blocks,
        blocks,
        torch.tensor([3, 4]),
        starts=torch.tensor([1, 0]),
        block_tables=torch.tensor([[2, 1], [0, 3]]),
    )
    got = attention(q, blocks, blocks, (3, 4), starts=[1, 0], block_tables=[[2, 1], [0, 3]], softcap=None)
    assert torch.equal(got, want)
    refused("list_length", "block_tables", attention, q, blocks, blocks, block_tables=[[2, 1], [0]])
    refused("not_integers", "lengths", attention, q, blocks, blocks, [1.0, 2.0])
    refused("keyword_type", "scale", attention, q, blocks, blocks, scale="big")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 2, 1, 4), (0, 1, 8, 4), (0, 1, 8, 4)),
        ((2, 2, 0, 4), (2, 1, 8, 4), (2, 1, 8, 4)),
        ((2, 2, 3, 4), (2, 1, 0, 4), (2, 1, 0, 4)),
        ((2, 2, 3, 0), (2, 1, 8, 0), (2, 1, 8, 4)),
        ((2, 2, 3, 4), (2, 1, 8, 4), (2, 1, 8, 0)),
    ],
)
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_sizes_of_zero(shapes: Any, dtype: torch.dtype, mode: Any, is_recorded: bool) -> None:
    q, k, v = (torch.ones(shape, dtype=dtype) for shape in shapes)
    q.requires_grad_(is_recorded)
    output = attention(q, k, v, mode=mode)
    assert output.shape == (*q.shape[:3], v.shape[3])
    torch.testing.assert_close(output.detach(), torch.full_like(output, 1.0 if k.shape[2] else 0.0))
    if is_recorded:
        output.sum().backward()
        assert q.grad is not None and q.grad.isfinite().all()


def test_blocks_without_a_block() -> None:
    q, blocks = torch.ones(2, 2, 1, 4), torch.ones(0, 1, 4, 4)
    tables = torch.tensor([[5], [-1]])
    assert not attention(q, blocks, blocks, [0, 0], block_tables=tables).any()
    assert not attention(q.double(), blocks, blocks, [0, 0], block_tables=tables).any()
    for query in (q, q.double()):
        refused(
            "block_out_of_range",
            None,
            attention,
            query,
            blocks,
            blocks,
            [1, 0],
            block_tables=tables,
            of=kvscatter.PositionError,
        )


# ── tracing ─────────────────────────────────────────────────────────────────────────────────────────────────────

BACKENDS = [
    "eager",
    "aot_eager",
    pytest.param(
        "inductor", marks=pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
    ),
]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolates a test from compiled code of other tests and of earlier runs on disk."""
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    torch.compiler.reset()


def decode() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(2, heads, rows, 8, generator=generator) for heads, rows in ((4, 3), (2, 12), (2, 12))
    )
    return q, k, v, torch.tensor([5, 12])


@pytest.mark.parametrize(("seed", "is_recorded"), [(seed, seed < 1003) for seed in range(1000, 1012)])
def test_opcheck(seed: int, is_recorded: bool) -> None:
    case = attention_oracle.case(seed)
    given = arguments(case)
    if is_recorded:
        given = (case.q.detach().requires_grad_(), *given[1:])
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(OPS.attention.default, given, test_utils=checks)
    torch.library.opcheck(OPS.visible.default, arguments(case), test_utils=checks[::2])


def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Reads whole caches, then rings with a window and a sink, of which the layout is the other one."""
    whole = attention(q * 2, k, v, lengths)
    other = (it.transpose(1, 2) for it in (whole, k, v))
    sink = q[0, :, 0, 0]
    ring = attention(*other, lengths + 9, window=4, sink=sink, mode="circular", layout="bshd", softcap=3.0)
    return ring + 1


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_compile(backend: str, dynamic: bool | None) -> None:
    if dynamic and backend == "inductor":
        pytest.skip("aot_eager traces the same, and inductor compiles for long")
    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=dynamic)
    q, k, v, lengths = decode()
    for move in range(3):  # different lengths must not cause a recompilation
        with torch.compiler.set_stance("default" if move == 0 else "fail_on_recompile"):
            here = lengths - move
            torch.testing.assert_close(compiled(q, k, v, here), step(q, k, v, here))
    if dynamic:
        q, k, v = torch.randn(3, 6, 2, 5), torch.randn(3, 3, 7, 5), torch.randn(3, 3, 7, 5)
        with torch.compiler.set_stance("fail_on_recompile"):
            lengths = torch.tensor([7, 1, 0])
            torch.testing.assert_close(compiled(q, k, v, lengths), step(q, k, v, lengths))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_gradients(backend: str) -> None:
    def gradients(call: Any) -> tuple[torch.Tensor, ...]:
        q, k, v, lengths = decode()
        leaves = [it.requires_grad_() for it in (q, k, v)]
        return torch.autograd.grad(call(*leaves, lengths).pow(2).sum(), leaves)

    compiled = gradients(torch.compile(step, fullgraph=True, backend=backend))
    for got, want in zip(compiled, gradients(step), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.usefixtures("fresh")
def test_compiled_errors_are_this_packages() -> None:
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    q, k, v, lengths = decode()
    compiled(q, k, v, lengths)
    with pytest.raises(kvscatter.PositionError, match=r"lengths\[1\] = 13"):
        compiled(q, k, v, lengths + 1)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 8)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        return attention(self.project(q), k, v, lengths)


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict: bool) -> None:
    layer, given = Layer(), decode()
    batch, rows, slots = Dim("batch"), Dim("rows"), Dim("slots")
    shapes = ({0: batch, 2: rows}, {0: batch, 2: slots}, {0: batch, 2: slots}, {0: batch})
    program = torch.export.export(layer, given, dynamic_shapes=shapes, strict=strict)
    reads = program.graph.find_nodes(op="call_function", target=OPS.attention.default)
    assert len(reads) == 1, "the read stays one operator"
    q, k, v = torch.randn(3, 4, 1, 8), torch.randn(3, 2, 40, 8), torch.randn(3, 2, 40, 8)
    for call in (given, (q, k, v, torch.tensor([40, 0, 7]))):
        with torch.no_grad():
            torch.testing.assert_close(program.run_decompositions().module()(*call), layer(*call))


def test_a_mask_and_tables_with_dynamic_shapes() -> None:
    def read(q: torch.Tensor, blocks: torch.Tensor, tables: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return attention(q, blocks, blocks, mask=mask, block_tables=tables)

    compiled = torch.compile(read, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch, heads, rows, blocks in ((2, 4, 3, 2), (3, 6, 5, 4)):
        q, cache = torch.randn(batch, heads, rows, 8), torch.randn(9, 2, 4, 8)
        tables = torch.randint(0, 9, (batch, blocks))
        mask = torch.rand(batch, 1, rows, 4 * blocks) < 0.5
        assert torch.equal(compiled(q, cache, tables, mask), read(q, cache, tables, mask))


# ── torch.vmap ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("seed", range(2000, 2040))
def test_vmap(seed: int, is_recorded: bool) -> None:
    case = attention_oracle.case(seed)
    # The flipped mask of an item shows other slots.
    given = [it.nan_to_num() if isinstance(it, torch.Tensor) else it for it in arguments(case)]
    items: list[int | None] = []
    for argument in given:
        if not isinstance(argument, torch.Tensor):
            items.append(None)
            continue
        dim = (None, 0, argument.dim())[(seed + len(items)) % 3]
        items.append(dim)
    if all(dim is None for dim in items):
        items[0] = 0

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype is torch.bool:
            return tensor.flip(-1)
        return tensor / 2 if tensor.is_floating_point() else tensor

    stacked = [
        it if dim is None else torch.stack([it, it, changed(it)], dim)
        for it, dim in zip(given, items, strict=True)
    ]

    def call(*arguments: Any) -> torch.Tensor:
        return OPS.attention(*arguments)

    if is_recorded:
        stacked[0] = stacked[0].detach().requires_grad_()
    got = torch.vmap(call, in_dims=tuple(items))(*stacked)
    for item in range(3):
        one = [it if dim is None else it.select(dim, item) for it, dim in zip(stacked, items, strict=True)]
        torch.testing.assert_close(got[item], call(*one))


def test_vmap_with_blocks_of_each_item() -> None:
    q, blocks = torch.randn(3, 2, 2, 1, 4), torch.randn(3, 4, 1, 2, 4)
    tables = torch.tensor([[2, 99], [0, 3]])
    got = torch.vmap(lambda q, blocks: attention(q, blocks, blocks, [2, 4], block_tables=tables))(q, blocks)
    for item in range(3):
        want = attention(q[item], blocks[item], blocks[item], [2, 4], block_tables=tables)
        assert torch.equal(got[item], want)
    with pytest.raises(kvscatter.PositionError):
        torch.vmap(lambda q, blocks: attention(q, blocks, blocks, [3, 4], block_tables=tables))(q, blocks)


# ── derivatives ─────────────────────────────────────────────────────────────────────────────────────────────────

OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": False, "softcap": 0.8, "scale": 0.3},
    {"window": 2, "starts": [1, 0]},
    {"mode": "circular", "lengths": [9, 2], "window": 3},
    {"lengths": [0, 4]},
    {"layout": "bshd", "lengths": [1, 4]},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("extras", [(), ("mask", "sink")], ids=["plain", "mask and sink"])
def test_gradients(options: dict[str, Any], extras: tuple[str, ...]) -> None:
    q, k, v = (
        torch.randn(2, heads, rows, 2, dtype=torch.float64) for heads, rows in ((2, 3), (1, 4), (1, 4))
    )
    mask = torch.randn(3, 4, dtype=torch.float64)
    mask[1, :2] = -torch.inf
    more = {"mask": mask, "sink": torch.randn(2, dtype=torch.float64)}
    if options.get("layout") == "bshd":
        q, k, v = (it.transpose(1, 2).contiguous() for it in (q, k, v))
    # A difference of minus infinities is not a number, so the mask is differentiated where it is finite.
    leaves = [it.requires_grad_() for it in (q, k, v, *(torch.zeros_like(more[name]) for name in extras))]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *added: torch.Tensor) -> torch.Tensor:
        given = {name: more[name] + delta for name, delta in zip(extras, added, strict=True)}
        return attention(q, k, v, **given, **options)

    every = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(call, leaves, fast_mode=bool(extras), **every)
    if extras:
        assert torch.autograd.gradgradcheck(call, leaves, check_fwd_over_rev=True, fast_mode=True)


def test_transforms() -> None:
    q, k, v, lengths = decode()

    def loss(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, lengths).pow(2).sum()

    leaf = q.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(leaf, k), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(q, k), want)
    many = torch.vmap(torch.func.grad(loss), in_dims=(0, None))(torch.stack([q, 2 * q]), k)
    torch.testing.assert_close(many[0], want)
    value, tangent = torch.func.jvp(lambda q: loss(q, k), (q,), (torch.ones_like(q),))
    torch.testing.assert_close(tangent, want.sum())
    torch.testing.assert_close(value, loss(q, k))
    torch.compiler.reset()
    compiled = torch.compile(torch.func.grad(loss), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k), want)


@pytest.mark.usefixtures("fresh")
def test_compiled_dual_numbers() -> None:
    q, k, v, lengths = decode()

    def tangent(q: torch.Tensor) -> torch.Tensor:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
            output = torch.autograd.forward_ad.unpack_dual(attention(dual, k, v, lengths)).tangent
        assert output is not None
        return output

    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(tangent, backend="aot_eager")
    torch.testing.assert_close(compiled(q), tangent(q))


def test_the_kernel_runs_without_gradients() -> None:
    q, k, v, lengths = decode()
    want = kvscatter.attention(q, k, v, lengths)
    q.requires_grad_()
    with torch.no_grad():
        assert torch.equal(attention(q, k, v, lengths), want)
    with torch.inference_mode():
        assert torch.equal(attention(q, k, v, lengths), want)


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────

CODES = {"k_scale": torch.ones(2, 2, 12), "v_scale": torch.ones(2, 2, 12)}


def coded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return q, k.to(torch.int8), v.to(torch.int8)


@pytest.mark.parametrize("query", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("change", "options", "kind"),
    [
        (lambda q, k, v: (q[0], k, v), {}, "rank"),
        (lambda q, k, v: (q, k[..., :7], v), {}, "dimension_mismatch"),
        (lambda q, k, v: (q, k, v[:, :, :7]), {}, "dimension_mismatch"),
        (lambda q, k, v: (q[:1], k, v), {}, "dimension_mismatch"),
        (lambda q, k, v: (q[:, :3], k, v), {}, "heads"),
        (lambda q, k, v: (q.long(), k, v), {}, "element_type"),
        (lambda q, k, v: (q, k.long(), v.long()), {}, "element_type"),
        (lambda q, k, v: (q, k, v.half()), {}, "element_type_mismatch"),
        (lambda q, k, v: (q, k, v), {"mask": torch.ones(3, 12, dtype=torch.half)}, "element_type_mismatch"),
        (lambda q, k, v: (q, k, v), {"mask": torch.ones(3, 13, dtype=torch.bool)}, "dimension_mismatch"),
        (lambda q, k, v: (q, k, v), {"mask": torch.ones(2, 12, dtype=torch.bool)}, "dimension_mismatch"),
        (lambda q, k, v: (q, k, v), {"mask": torch.ones((), dtype=torch.bool)}, "dimension_mismatch"),
        (lambda q, k, v: (q, k, v), {"sink": torch.ones(4, dtype=torch.half)}, "element_type_mismatch"),
        (lambda q, k, v: (q, k, v, torch.tensor([1, 2, 3])), {}, "list_length"),
        (lambda q, k, v: (q, k, v, torch.tensor([[1, 2]])), {}, "rank"),
        (lambda q, k, v: (q, k, v, torch.tensor([1.0, 2.0])), {}, "not_integers"),
        (lambda q, k, v: (q, k, v), {"starts": torch.tensor([1])}, "list_length"),
        (lambda q, k, v: (q, k, v), {"block_tables": torch.ones(2, 2)}, "not_integers"),
        (lambda q, k, v: (q, k, v), {"block_tables": torch.ones(2).long()}, "rank"),
        (lambda q, k, v: (q, k, v), {"block_tables": torch.ones(3, 1).long()}, "list_length"),
        (
            lambda q, k, v: (q, k, v),
            {"block_tables": torch.ones(2, 1).long(), "mode": "circular"},
            "combination",
        ),
        (lambda q, k, v: (q, k, v), {"mode": "ring"}, "choice"),
        (lambda q, k, v: (q, k, v), {"layout": "hsd"}, "choice"),
        (lambda q, k, v: (q, k, v), {"window": 0}, "integer_range"),
        (lambda q, k, v: (q, k, v), {"scale": -1.0}, "number_range"),
        (lambda q, k, v: (q, k, v), {"softcap": float("nan")}, "number_range"),
        (lambda q, k, v: (q, k, v), {"threads": 0}, "integer_range"),
        (coded, {}, "combination"),
        (lambda q, k, v: (q, k, v), CODES, "combination"),
        (coded, {"k_scale": torch.ones(2, 2, 12)}, "scale_missing"),
        (coded, {**CODES, "v_scale": torch.ones(2, 12, 2)}, "list_length"),
        (coded, {**CODES, "k_scale": torch.ones(48)}, "list_length"),
        (coded, {**CODES, "k_scale": torch.ones(2, 8)}, "list_length"),
        (coded, {**CODES, "k_scale": torch.ones(2, 2, 12).half()}, "element_type_mismatch"),
    ],
)
def test_the_fake_kernel_refuses_what_the_real_one_does(
    change: Any, options: dict[str, Any], kind: str, query: torch.dtype
) -> None:
    q, k, v, _ = decode()
    given = change(q.to(query) if change is not coded else q, k, v)
    named = {name: it.to("meta") if isinstance(it, torch.Tensor) else it for name, it in options.items()}
    for tensors, more in ((given, options), ([it.to("meta") for it in given], named)):
        with pytest.raises(kvscatter.Error) as caught:
            OPS.attention(*tensors, **more)
        assert caught.value.kind == kind


@pytest.mark.parametrize("query", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_numbers_out_of_range(query: torch.dtype, is_recorded: bool) -> None:
    q, k, v, _ = decode()
    q = q.to(query).requires_grad_(is_recorded)
    for options, kind in (
        ({"lengths": [3, 13]}, "length_out_of_range"),
        ({"lengths": [-1, 3]}, "length_out_of_range"),
        ({"starts": [-1, 3]}, "negative_start"),
        ({"block_tables": [[0], [2]]}, "block_out_of_range"),
    ):
        refused(kind, None, attention, q, k, v, **options, of=kvscatter.PositionError)


def test_tensors_on_a_device_name_other_functions() -> None:
    with FakeTensorMode():
        q, k = torch.zeros(1, 1, 1, 4, device="cuda"), torch.zeros(1, 1, 8, 4, device="cuda")
        error = refused("device", "q", attention, q, k, k, of=kvscatter.DeviceError)
        assert "scaled_dot_product_attention" in str(error)
    host, meta = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 8, 4, device="meta")
    refused("device", "k", attention, host, meta, meta, of=kvscatter.DeviceError)


def test_tensors_that_are_not_strided() -> None:
    q, k, v, _ = decode()
    for given in ((q.to_sparse(), k, v), (q, k.to_sparse(), v)):
        with pytest.raises(kvscatter.ArrayError, match="only strided tensors"):
            attention(*given)


def test_a_traced_graph_has_one_call() -> None:
    def read(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, lengths, window=3)

    traced = torch.fx.symbolic_trace(read)
    assert attention in [node.target for node in traced.graph.nodes]
    assert torch.equal(traced(*decode()), read(*decode()))
