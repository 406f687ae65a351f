"""Compiles the fused kernels for every capability in `kernels.cards`, without a card, and checks what they need.

All sizes take more than a minute. Tilings follow the shared memory, so cards that have as much of it share the sizes.
"""

import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from photonlite import kernels
from photonlite.config import Precision
from photonlite.device.collectives import RankGroup
from photonlite.kernels import (
    adapters,
    cards,
    decode_attention,
    norms,
    prefill_attention,
    rank_sums,
    rotary,
    row_adapters,
    serial_block,
    small_batch_gemm,
    tilings,
)
from photonlite.kernels.activations import swiglu
from photonlite.kernels.cards import CARDS, Card
from photonlite.kernels.fp8 import CAPABILITY
from photonlite.kernels.quantised import dense
from photonlite.kernels.reference.attention import ScoreRule
from photonlite.kernels.reference.quantised import empty, join_columns
from photonlite.kernels.triton_utils import LEAST_CAPABILITY
from tests.kernels.adapter_cases import block_terms

Size = tuple[int, int, int, int, int]
"""Hidden size, heads, key/value heads, size of a head, inside of the MLP."""
# blocks are serial but for the first
SIZES = [(2048, 32, 32, 64, 8192), (2048, 16, 8, 128, 6144), (3584, 28, 4, 128, 18_944), (2304, 8, 4, 256, 9216)]
ROWS = (1, 32)
QUANTISED = [(SIZES[0], 1), (SIZES[1], 32)]  # a block of either kind: each takes a minute for all cards
PRECISIONS: tuple[Precision, ...] = ("int8", "fp8", "int4")
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SPILLED = 64  # bytes of a thread that may spill: a few numbers, which cost next to nothing


class Target:
    """Stands in for Triton's driver: names a card that is not here."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._number = capability[0] * 10 + capability[1]

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._number, 32)

    def get_current_device(self) -> int:
        return self._number  # Triton keeps what it has compiled by device, not by target

    def get_current_stream(self, device: object = None) -> int:
        return 0


class Compiler:
    """Compiles what a call would launch; keeps the largest shared memory by kernel.

    Args:
        card: For which.
    """

    def __init__(self, card: Card) -> None:
        self.card = card
        self.shared: dict[str, int] = {}
        self.ptx: dict[str, str] = {}  # of the last of each kernel
        self.compiled = 0
        self._launch = JITFunction.run

    def __call__(self, kernel: Any, *arguments: Any, grid: object, warmup: bool, **options: Any) -> Any:
        made = self._launch(kernel, *arguments, grid=(1,), warmup=True, **options)
        name = kernel.fn.__module__.rpartition(".")[2]
        self.shared[name] = max(self.shared.get(name, 0), made.metadata.shared)
        self.compiled += 1
        self.ptx[kernel.__name__] = made.asm["ptx"]
        stack = stack_bytes(made.asm["cubin"])
        assert stack <= SPILLED, f"{self.card.name}: {kernel.__name__} of {name} spills {stack} bytes a thread"
        return made


def stack_bytes(cubin: bytes) -> int:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([TOOL, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
    return int(re.search(r"STACK:(\d+)", text)[1])  # type: ignore[index]


def zeros(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(size, dtype=dtype)


def ints(*size: int) -> Tensor:
    return zeros(*size, dtype=torch.int32)


def rule_of(dim: int) -> ScoreRule | None:
    """Return how Gemma, whose heads alone are so wide, scores keys."""
    return ScoreRule(1 / 16, 50.0) if dim == 256 else None


def step(hidden: int, heads: int, kv_heads: int, dim: int, inner: int, rows: int) -> None:
    """A decode step's kernels of one block."""
    x, qkv = zeros(rows, hidden), (heads + 2 * kv_heads) * dim
    pages = [zeros(4, kv_heads, 16, dim).transpose(1, 2) for _ in range(2)]
    place = ints(rows, 3)
    rotated = zeros(2, 64, min(dim // 2, 64), dtype=torch.float32)
    attended, gains = zeros(rows, heads * dim), (zeros(dim), zeros(dim), 1e-6)
    rule = rule_of(dim)
    decode_attention.decode_attention(
        zeros(rows, qkv), rotated, *pages, ints(rows, 128), place[:, 0], place[:, 1], attended,
        norms=None if rule or heads == kv_heads else gains, rule=rule,
    )  # fmt: skip
    decode_attention.decode_attention(
        attended, rotated, *pages, ints(rows, 128), place[:, 0], place[:, 0], attended, rule=rule, stored=True
    )
    if heads == kv_heads:  # a parallel block
        norm, total = (zeros(hidden), zeros(hidden), 1e-5), qkv + inner
        cat, stats = zeros(rows, heads * dim + inner), None
        if rows == 1:
            stats = small_batch_gemm.tile_statistics(x, tilings.stats_width(hidden, cat.shape[1]))
        small_batch_gemm.linear_in(
            x, stats, zeros(total, hidden), zeros(total), norm, zeros(rows, qkv), cat[:, heads * dim :]
        )
        small_batch_gemm.linear_out(cat, zeros(hidden, cat.shape[1]), zeros(hidden), x, stats)
        adapted_step(x, cat, (hidden, qkv, inner, heads * dim))
        return
    if rule is not None:  # Gemma, whose norms stand behind products too
        inside, gain = zeros(rows, inner), zeros(hidden, dtype=torch.float32)
        small_batch_gemm.linear_into(zeros(rows, qkv), x, zeros(qkv, hidden), None)
        small_batch_gemm.linear_into(x, attended, zeros(hidden, heads * dim), None)
        small_batch_gemm.linear_into(inside, x, zeros(2 * inner, hidden), None, gated=True, gelu=True)
        small_batch_gemm.linear_into(x, inside, zeros(hidden, inner), None)
        norms.add_normed(x, x, gain, gain, 1e-6, x)
        return
    scales = [serial_block.empty_scales(rows, hidden, width, 1e-6, x) for width in (inner, heads * dim)]
    serial_block.scale_stream(x, zeros(hidden), scales[0])
    serial_block.norm_linear(scales[0], zeros(qkv, hidden), zeros(qkv), zeros(rows, qkv))
    serial_block.add_linear(attended, zeros(hidden, heads * dim), x, (zeros(hidden), scales[1]))
    inside = zeros(rows, inner)
    serial_block.norm_linear(scales[1], zeros(2 * inner, hidden), None, inside, gated=True)
    serial_block.add_linear(inside, zeros(hidden, inner), x, (zeros(hidden), scales[0]))


def rank_step(hidden: int, rows: int) -> None:
    """What a rank of two has behind a product into the stream."""
    ranks = RankGroup(1, 2)
    ranks.peers = SimpleNamespace(  # type: ignore[assignment]
        own=zeros(2**22, dtype=torch.uint8), addresses=zeros(2, dtype=torch.int64), ended=ints(1)
    )
    x, sums = zeros(rows, hidden), rank_sums.RankSums(ranks, hidden, 2)
    for bias in (None, zeros(hidden)):
        sums.add(x, sums.partial(x, 1), 1, (zeros(hidden), bias, 1e-5))


def adapted_step(x: Tensor, cat: Tensor, sizes: tuple[int, int, int, int]) -> None:
    """The products of a parallel block some of whose rows have adapters."""
    hidden, qkv, inner, attended = sizes
    terms, columns = block_terms(8, 16, sizes, x.dtype)
    index, low = ints(len(x)), zeros(len(x), columns, dtype=torch.float32)
    added = {name: row_adapters.RowTerms(index, low, some) for name, some in terms.items()}
    ready = small_batch_gemm.Handshake(ints(1), ints(1), 9, attended)
    normal = row_adapters.shrink(x, added["of_norm"], (zeros(hidden), zeros(hidden), 1e-5))
    w_in, raw = zeros(qkv + inner, hidden), zeros(len(x), qkv)
    small_batch_gemm.linear_in(
        normal, None, w_in, zeros(qkv + inner), None, raw, cat[:, attended:], ready, added["into"]
    )  # fmt: skip
    row_adapters.shrink(cat, added["of_inside"])
    small_batch_gemm.linear_out(cat, zeros(hidden, cat.shape[1]), zeros(hidden), x, None, ready, added["out"])


def adapter(hidden: int, inner: int, rows: int) -> None:
    """The terms of an adapter at one layer."""
    stack = adapters.AdapterStack(zeros(3, 16, hidden), zeros(3, inner, 16), 0, [0, 16, 16])
    batch = adapters.AdapterRows.of([1, 2, *[0] * (rows - 1)], [1] * (rows + 1), torch.device("cpu"))
    adapters.add_adapters(zeros(rows + 1, inner), zeros(rows + 1, hidden), batch, stack)


def adapted_prompt(hidden: int, qkv: int, inner: int, attended: int, rows: int) -> None:
    """The terms of adapters at both products of a block."""
    terms, columns = block_terms(8, 16, (hidden, qkv, inner, attended), torch.bfloat16)
    x, h, cat = zeros(rows, hidden), zeros(rows, qkv + inner), zeros(rows, attended + inner)
    low, index = adapters.empty_low(rows, columns, x), ints(rows, 4)[:, 3]
    for given, read, target, add in ((x, "of_norm", h, "into"), (cat, "of_inside", x, "out")):
        adapters.shrink(given, adapters.RowTerms(index, low, terms[read]))
        adapters.expand(target, adapters.RowTerms(index, low, terms[add]))


def quantised(hidden: int, heads: int, kv_heads: int, dim: int, inner: int, rows: int, precision: Precision) -> None:
    """Products of a block and of a head with quantised weights, and a matrix that is turned back."""
    x, qkv, width = zeros(rows, hidden), (heads + 2 * kv_heads) * dim, heads * dim
    made = [empty(size, precision, "cpu") for size in ((qkv, hidden), (hidden, width), (hidden, inner))]
    small_batch_gemm.small_batch_gemm(x, made[0], zeros(qkv))
    dense(made[0], torch.bfloat16)
    if heads == kv_heads:
        norm, w_in = (zeros(hidden), zeros(hidden), 1e-5), empty((qkv + inner, hidden), precision, "cpu")
        cat, w_out = zeros(rows, width + inner), join_columns(made[1:])
        inside, stats = cat[:, width:], None
        if small_batch_gemm.is_single(rows, w_in):
            group = small_batch_gemm.group_of(w_out)
            stats = small_batch_gemm.tile_statistics(x, tilings.stats_width(*w_out.shape, group=group))
        small_batch_gemm.linear_in(x, stats, w_in, zeros(len(w_in)), norm, zeros(rows, qkv), inside)
        ready = small_batch_gemm.Handshake(ints(1), ints(1), 9, width)
        small_batch_gemm.linear_out(cat, w_out, zeros(hidden), x, stats, ready)
        return
    groups = [part.group for part in made]
    scales = [
        serial_block.empty_scales(rows, hidden, size, 1e-6, x, group=group)
        for size, group in ((inner, groups[2]), (width, groups[1]))
    ]
    serial_block.norm_linear(scales[0], made[0], zeros(qkv), zeros(rows, qkv))
    serial_block.add_linear(zeros(rows, width), made[1], x, (zeros(hidden), scales[1]))
    gate_up = empty((2 * inner, hidden), precision, "cpu")
    serial_block.norm_linear(scales[1], gate_up, None, zeros(rows, inner), gated=True)
    serial_block.add_linear(zeros(rows, inner), made[2], x, (zeros(hidden), scales[0]))


def prompt(hidden: int, heads: int, kv_heads: int, dim: int, inner: int) -> None:
    """A prompt's kernels of one block."""
    count, half = 70, min(dim // 2, 64)
    pages = [zeros(4, kv_heads, 16, dim).transpose(1, 2) for _ in range(2)]
    own = heads == kv_heads  # a parallel block
    norms.residual_norm(zeros(count, hidden), None, None, zeros(hidden), zeros(hidden) if own else None, 1e-5)
    q, cat = rotary.rotary_gelu_write(
        zeros(count, (heads + 2 * kv_heads) * dim + inner * own), ints(count, 3)[:, 0] if own else ints(count, 3),
        ints(count), zeros(2, 64, half, dtype=torch.float32), *pages, heads,
        axes=None if own else ints(half), norms=None if own else (zeros(dim), zeros(dim), 1e-6),
    )  # fmt: skip
    rotary.rotate_heads(zeros(count, 3 * heads * dim), zeros(2, count, dim // 2, dtype=torch.float32), heads)
    rule = rule_of(dim)
    prefill_attention.paged_prefill_attention(q, *pages, ints(2, 9), ints(3, 5), cat[:, : heads * dim], rule=rule)
    if not own:
        swiglu(zeros(count, 2 * inner), gelu=rule is not None)


def modules() -> list[ModuleType]:
    names = [module.name for module in pkgutil.iter_modules(kernels.__path__) if not module.ispkg]
    return [importlib.import_module(f"{kernels.__name__}.{name}") for name in names]


def compiled_for(card: Card, sizes: Sequence[Size]) -> Compiler:
    """Compile every kernel of blocks of some sizes for a card, and those that only some cards have for all sizes."""
    compiler = Compiler(card)
    dependent = {"PDL": True, "launch_pdl": True} if card.capability >= (9, 0) else {"PDL": False}
    stand_ins: dict[str, Callable[..., object]] = {
        "use_triton": lambda x: True,
        "supported": lambda x, weight: True,
        "dependent_launch": lambda x: dependent,
        "shared_memory": lambda x: card.shared,
    }
    driver.set_active(Target(card.capability))
    with mock.patch.object(JITFunction, "run", lambda kernel, *a, **o: compiler(kernel, *a, **o)):
        patches = [
            mock.patch.object(module, name, stand_in)
            for module in modules()
            for name, stand_in in stand_ins.items()
            if hasattr(module, name)
        ]
        for patch in patches:
            patch.start()
        for size in sizes:
            for rows in ROWS:
                step(*size, rows)
                adapter(size[0], size[-1], rows)
            rank_step(size[0], ROWS[0])
            prompt(*size)
        hidden, heads, kv_heads, dim, inner = sizes[0]
        for rows in (ROWS[0], 2 * adapters.FEW):
            adapted_prompt(hidden, (heads + 2 * kv_heads) * dim, inner, heads * dim, rows)
        for size, rows in QUANTISED:
            for precision in PRECISIONS:
                if card.capability >= CAPABILITY if precision == "fp8" else size in sizes:
                    quantised(*size, rows, precision)
        for patch in patches:
            patch.stop()
    return compiler


def check(memory: int, sharing: Sequence[Card]) -> None:
    """Compare what the kernels take with what the table says, and with the shared memory that these cards have."""
    taken: dict[str, int] = {}
    for index, card in enumerate(sharing):
        compiler = compiled_for(card, SIZES[index :: len(sharing)])
        taken |= {name: max(shared, taken.get(name, 0)) for name, shared in compiler.shared.items()}
        # What another card wrote is read past L1, behind an acquire.
        assert re.search(r"atom\S*acquire.*ld\.global\.cg\.v4", compiler.ptx["add_kernel"], re.DOTALL), card.name
        print(f"{card.name}: {compiler.compiled} kernels are compiled")
    told = dict.fromkeys(
        ("row_kernels", "row_adapters_kernels", "activations", "quantised", "rank_sums"), cards.ROW_BYTES
    )
    told["adapters"] = 65_536
    for _, heads, kv_heads, dim, _ in SIZES:
        group = heads // kv_heads
        for need in (*cards.prompt_needs(dim, group), *cards.step_needs(dim, group)):
            told[need.kernel] = max(told.get(need.kernel, 0), need.shared)
    told["small_batch_gemm_kernels"] = memory  # tilings shrink to what there is
    assert told.pop("small_batch_gemm") <= memory
    assert taken.keys() == told.keys(), (taken.keys(), told.keys())
    for name, shared in taken.items():
        assert shared <= min(told[name], memory), f"{name} takes {shared} bytes of {memory}, not {told[name]}"


def main() -> None:
    cards_of: dict[int, dict[tuple[int, int], Card]] = defaultdict(dict)
    for card in CARDS:
        if card.capability >= LEAST_CAPABILITY:
            cards_of[card.shared].setdefault(card.capability, card)
    for memory, sharing in cards_of.items():
        check(memory, list(sharing.values()))
    print("compiled kernels fit")


if __name__ == "__main__":
    main()
