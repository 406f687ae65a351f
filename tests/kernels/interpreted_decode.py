"""Runs the kernels of decode steps on the CPU by Triton's interpreter; see `interpreter.py`."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels import small_batch_gemm as gemm
from photonlite.kernels import triton_utils
from photonlite.kernels.decode_attention import AttentionConfig, decode_attention
from photonlite.kernels.reference import attention as reference_attention
from photonlite.kernels.reference import small_batch_gemm as reference
from photonlite.kernels.reference.attention import ScoreRule
from photonlite.kernels.row_kernels import normalise_kernel, statistics_kernel
from photonlite.kernels.small_batch_gemm import Handshake
from photonlite.kernels.tilings import Tiling
from photonlite.kernels.triton_utils import power_of_2
from tests.kernels.steps import BlockCase, StepCase, block_case, step_case

CPU = torch.device("cpu")

# rows, width of the residual stream, columns of attention, inside of the MLP
BLOCKS = [(1, 72, 48, 80), (3, 56, 168, 96), (17, 40, 24, 42), (1, 56, 40, 25), (64, 32, 16, 48)]
MANY = [Tiling(64, 64), Tiling(16, 32, 3), Tiling(32, 16, 2)]
SINGLE = [Tiling(8, 256, 1, 1, 0), Tiling(16, 64, 1, 1, 0), Tiling(4, 32, 1, 1, 0)]

# heads, key/value heads, head size, page size, rotated numbers
HEADS = [(3, 1, 8, 4, 4), (4, 4, 24, 16, 12), (6, 2, 40, 1, 20), (2, 2, 64, 32, 64), (14, 2, 128, 16, 128)]
CONFIGS = [
    AttentionConfig(32, 1),
    AttentionConfig(4, 2),
    AttentionConfig(16, 3),
    AttentionConfig(64, 2),
    AttentionConfig(32, 1, dot=True),
    AttentionConfig(16, 3, dot=True),
]
POSITIONS = [0, 6, 31, 170, 64]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4, equal_nan=True)


def statistics(x: Tensor, width: int) -> Tensor:
    """Those of the kernel, which must equal the reference's."""
    wanted = reference.tile_statistics(x, width)
    found = torch.empty_like(wanted)
    statistics_kernel[(wanted.shape[1], len(x))](x, found, x.shape[1], TILE=width, PDL=False)
    close(found, wanted)
    return found


def normal(case: BlockCase) -> Tensor:
    """The layer norm by the kernel, of rows that lie apart; its RMS norm is checked on the way."""
    rows, dim = case.x.shape
    apart, out = torch.full((rows, dim + 3), torch.nan), torch.empty(rows, dim)
    apart[:, :dim] = case.x
    weight, bias, eps = case.norm
    normalise_kernel[(rows,)](
        apart, weight, weight, out, dim, dim + 3, eps, WIDTH=power_of_2(dim), CENTRED=False, PDL=False
    )  # fmt: skip
    close(out, functional.rms_norm(case.x, (dim,), weight, eps))
    normalise_kernel[(rows,)](
        apart, weight, bias, out, dim, dim + 3, eps, WIDTH=power_of_2(dim), CENTRED=True, PDL=False
    )
    return out


def check_into(case: BlockCase, tiling: Tiling, width: int, ready: Tensor) -> None:
    """Both of its outputs, and `ready`: the first counts the programs that are done, the second is cleared."""
    rows, attended, total = len(case.x), case.attended, len(case.w_in)
    raw, wanted = torch.empty(rows, attended), torch.empty(rows, attended)
    cat, gelu = torch.full((rows, total), torch.nan), torch.empty(rows, total - attended)
    activated = cat[:, attended:]
    reference.linear_in(case.x, case.w_in, case.b_in, case.norm, wanted, gelu)
    count = -(-total // tiling.outs) * tiling.parts
    shake = Handshake(ready[:1], ready[1:], count, attended)
    if tiling.stages:
        gemm.run_product(
            normal(case), case.w_in, case.b_in, raw=raw, activated=activated, split=attended, tiling=tiling,
            announces=shake,
        )  # fmt: skip
    else:
        gemm.run_product(
            case.x, case.w_in, case.b_in, raw=raw, activated=activated, split=attended,
            norm=(statistics(case.x, width), *case.norm), tiling=tiling, announces=shake,
        )  # fmt: skip
    assert ready.tolist() == [count, 0]
    close(raw, wanted)
    close(activated, gelu)
    assert cat[:, :attended].isnan().all()


def check_out(case: BlockCase, tiling: Tiling, shake: Handshake | None) -> None:
    dim = case.x.shape[1]
    found, wanted = case.x.clone(), case.x.clone()
    reference.linear_out(case.inside, case.w_out, case.b_out, wanted, None)
    if tiling.stages:
        gemm.run_product(
            case.inside, case.w_out, case.b_out, raw=found, activated=found, split=dim, residual=True, tiling=tiling,
            awaits=shake,
        )  # fmt: skip
    else:
        stats = torch.full((2, -(-dim // tiling.outs), 1), torch.nan)
        gemm.run_product(
            case.inside, case.w_out, case.b_out, raw=found, activated=found, split=dim, residual=True, new_stats=stats,
            tiling=tiling, awaits=shake,
        )  # fmt: skip
        close(stats, reference.tile_statistics(found, tiling.outs))
    close(found, wanted)


def check_alone(case: BlockCase, tiling: Tiling, bias: bool) -> None:
    """A product without a block around it, into the columns of something larger."""
    offset = case.b_in if bias else None
    for gelu in (False, True):
        found = torch.empty(len(case.x), len(case.w_in) + 5)[:, 5:]
        split = 0 if gelu else len(case.w_in)
        gemm.run_product(case.x, case.w_in, offset, raw=found, activated=found, split=split, tiling=tiling)
        close(found, reference.small_batch_gemm(case.x, case.w_in, offset, gelu=gelu))
    pairs = case.w_in[: len(case.w_in) // 2 * 2]
    found, wanted = (torch.empty(len(case.x), len(pairs) // 2) for _ in range(2))
    gemm.run_product(case.x, pairs, None, raw=found, activated=found, split=0, gated=True, gelu=True, tiling=tiling)
    reference.linear_into(wanted, case.x, pairs, None, gated=True, gelu=True)
    close(found, wanted)


def check_blocks() -> None:
    for number, sizes in enumerate(BLOCKS):
        case = block_case(*sizes).to(torch.float32)
        for index, tiling in enumerate(MANY + SINGLE if sizes[0] == 1 else MANY):
            ready = torch.tensor([0, 7], dtype=torch.int32)
            check_into(case, tiling, (16, 32, 64)[index % 3], ready)
            # As many columns come late as attention has, fewer than a step of the loop, or one.
            late = (case.attended, 8, 1)[(number + index) % 3]
            check_out(case, tiling, Handshake(ready[:1], ready[1:], int(ready[0]), late))
            check_out(case, tiling, None)
            check_alone(case, tiling, bias=index % 2 == 0)
            assert not triton_utils.arrival_counters(CPU, 1).any(), "counters are left for the next launch"


def check_step(case: StepCase, config: AttentionConfig, *, normed: bool = False, capped: bool = False) -> None:
    wanted, found = case.copy(), case.copy()
    kv_heads, dim = case.keys.shape[2:]
    options: dict[str, Any] = {}
    if config.parts > 1:
        options["factors"] = torch.rand(len(case.qkv), case.qkv.shape[1] // dim - kv_heads) * 2
    if capped:
        options["rule"] = ScoreRule(0.2, 1.5)
    if normed:  # and rotated by other positions, as behind images
        turns = torch.stack((case.positions // 3, case.positions, case.positions), dim=1)[:, 0]
        case, found, wanted = (one.strided() for one in (case, found, wanted))
        options |= {"turns": turns, "norms": (torch.randn(dim), torch.randn(dim), 1e-6)}
    reference_attention.decode_attention(*wanted.arguments, **options)
    decode_attention(*found.arguments, **options, config=config)
    assert wanted.out.isfinite().all()
    close(found.out, wanted.out)
    for mine, theirs in ((found.keys, wanted.keys), (found.values, wanted.values)):
        close(mine.float(), theirs.float())
    assert not triton_utils.arrival_counters(CPU, 1).any(), "counters are left for the next launch"


def check_stored(case: StepCase, config: AttentionConfig) -> None:
    """Attention of what is stored: rotated queries, and rows that are later positions of one sequence."""
    positions = torch.tensor([160, 161, 162, 0, 64], dtype=torch.int32)
    table = case.page_table[[3, 3, 3, 3, 4]].contiguous()
    kv_heads, dim = case.keys.shape[2:]
    width = case.qkv.shape[1] - 2 * kv_heads * dim
    q, found, wanted = (torch.randn(5, width) for _ in range(3))
    keys, values = (pages.nan_to_num(0.5) for pages in (case.keys, case.values))
    given = (case.rotary, keys, values, table, positions, positions)
    reference_attention.decode_attention(q, *given, wanted, stored=True)
    decode_attention(q, *given, found, stored=True, config=config)
    close(found, wanted)


def check_attention() -> None:
    for number, shape in enumerate(HEADS):
        case = step_case(POSITIONS, *shape, torch.float32)
        for place, config in enumerate(CONFIGS):  # each is met with norms and without, by other shapes
            fresh = case.to(torch.float32, "cpu") if number % 2 else case
            check_step(fresh, config, normed=(number + place) % 2 == 0, capped=(number + place) % 3 == 0)
        check_stored(case, CONFIGS[number])
        check_stored(case, CONFIGS[-1])
    check_step(step_case([5], *HEADS[0], torch.float32), AttentionConfig(16, 27))  # more parts than positions


def main() -> None:
    torch.manual_seed(0)
    check_blocks()
    check_attention()
    print("interpreted kernels agree")
