import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from photonlite.kernels import decode_attention as module
from photonlite.kernels.decode_attention import AttentionConfig, attention_config, decode_attention
from photonlite.kernels.fp8 import has_fp8
from photonlite.kernels.reference import attention as reference
from photonlite.kernels.reference.attention import FP8, HeadNorms, dequantise
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.kernels.steps import StepCase, step_case


def turned(heads: Tensor, position: int, rotated: int) -> Tensor:
    """Rotate heads ``[H, D]`` pair by pair, by angles of float32 as everywhere."""
    out = heads.clone()
    for pair in range(rotated // 2):
        exponent = torch.tensor(2.0 * pair) / rotated
        angle = torch.tensor(float(position)) * torch.tensor(10_000.0) ** -exponent
        cos, sin = float(angle.cos()), float(angle.sin())
        first, second = heads[:, pair], heads[:, pair + rotated // 2]
        out[:, pair] = first * cos - second * sin
        out[:, pair + rotated // 2] = first * sin + second * cos
    return out


def dense(
    case: StepCase,
    row: int,
    rotated: int,
    scales: tuple[float, float] = (1.0, 1.0),
    turn: int | None = None,
    norms: HeadNorms | None = None,
) -> tuple[Tensor, ...]:
    """One row's attention, and its new key and value, by plain scaled dot-product attention: [H D], [H_kv, D] twice."""
    page, kv_heads, dim = case.keys.shape[1:]
    position = int(case.positions[row])
    turn = position if turn is None else turn
    heads = case.qkv[row].view(-1, dim)
    q, k, v = heads.split([len(heads) - 2 * kv_heads, kv_heads, kv_heads])
    if norms is not None:
        q, k = (
            x / (x.square().mean(1, keepdim=True) + norms[2]) ** 0.5 * gain
            for x, gain in ((q, norms[0]), (k, norms[1]))
        )
    q, k = turned(q, turn, rotated), turned(k, turn, rotated)
    stored = []
    for store, new, scale in zip((case.keys, case.values), (k, v), scales, strict=True):
        if store.dtype == FP8:
            new = dequantise((new / scale).clamp(-448, 448).to(FP8), q.dtype, scale)
        old = [
            dequantise(store[int(case.page_table[row, index // page]), index % page], q.dtype, scale)
            for index in range(position)
        ]
        stored.append(torch.stack((*old, new)))
    group = len(q) // kv_heads
    seen = [one.repeat_interleave(group, dim=1).transpose(0, 1)[None] for one in stored]  # [1, H, S, D]
    found = functional.scaled_dot_product_attention(q[None, :, None], *seen)
    return found.flatten(), stored[0][-1], stored[1][-1]


@given(
    positions=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 4), (6, 2)]),
    dim=st.sampled_from([4, 6]),
    page=st.sampled_from([1, 4, 8]),
    rotated=st.sampled_from([2, 4]),
)
@settings(max_examples=40)
def test_a_new_position_is_rotated_written_and_sees_all_before_it(
    positions: list[int], heads: tuple[int, int], dim: int, page: int, rotated: int
) -> None:
    torch.manual_seed(0)
    case = step_case(positions, *heads, dim, page, rotated, torch.float64)
    found = case.copy()

    decode_attention(*found.arguments)

    new = torch.zeros(case.keys.shape[:2], dtype=torch.bool)
    for row, position in enumerate(positions):
        wanted, key, value = dense(case, row, rotated)
        torch.testing.assert_close(found.out[row], wanted, rtol=1e-10, atol=1e-10)
        place = int(case.page_table[row, position // page]), position % page
        torch.testing.assert_close(found.keys[place], key)
        torch.testing.assert_close(found.values[place], value)
        new[place] = True
    for store, before in ((found.keys, case.keys), (found.values, case.values)):
        torch.testing.assert_close(store[~new], before[~new], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("heads", [(1, 1), (6, 2)])
def test_heads_are_normalised_and_rotated_by_a_position_of_their_own(heads: tuple[int, int]) -> None:
    torch.manual_seed(1)
    case = step_case([0, 9, 30], *heads, 8, 4, 8, torch.float64)
    norms = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64), 1e-6
    turns = torch.tensor([5, 2, 30], dtype=torch.int32)
    found = case.copy()

    decode_attention(*found.arguments, turns=turns, norms=norms)

    for row in range(3):
        wanted, key, value = dense(case, row, 8, turn=int(turns[row]), norms=norms)
        torch.testing.assert_close(found.out[row], wanted, rtol=1e-9, atol=1e-9)
        place = divmod(int(case.slots[row]), 4)
        torch.testing.assert_close(found.keys[place], key)
        torch.testing.assert_close(found.values[place], value)


def test_a_new_position_is_seen_as_8_bits_hold_it() -> None:
    torch.manual_seed(1)
    scales = (0.25, 0.5)
    case = step_case([0, 9, 30], 6, 2, 8, 4, 4, torch.float64).in_fp8(*scales)
    found = case.copy()

    decode_attention(*found.arguments, k_scale=scales[0], v_scale=scales[1])

    for row in range(3):
        wanted, key, _ = dense(case, row, 4, scales)
        torch.testing.assert_close(found.out[row], wanted, rtol=1e-6, atol=1e-6)
        place = divmod(int(case.slots[row]), 4)
        assert torch.equal(found.keys[place].double() * scales[0], key)


@given(
    rows=st.integers(1, 300),
    kv_heads=st.integers(1, 64),
    positions=st.integers(1, 5000),
    dim=st.sampled_from([64, 128]),
    fp8=st.booleans(),
    weight_group=st.sampled_from([0, 128, 2048]),
)
def test_few_rows_are_cut_into_parts_of_some_positions(
    rows: int, kv_heads: int, positions: int, dim: int, fp8: bool, weight_group: int
) -> None:
    config = attention_config(rows, kv_heads, positions, dim=dim, fp8=fp8, weight_group=weight_group)
    assert 1 <= config.parts <= max(1, positions // config.block)
    assert config.block & (config.block - 1) == 0
    assert rows * kv_heads < 4096 or config.parts == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda case: {"keys": torch.zeros(3, 6, 2, 8), "values": torch.zeros(3, 6, 2, 8)}, "page size is 6"),
        (lambda case: {"values": case.values.transpose(1, 2).contiguous().transpose(1, 2)}, "strides"),
        (lambda case: {"slots": case.slots.repeat_interleave(2)[::2]}, "stride"),
    ],
)
def test_what_the_kernel_does_not_read_is_refused(
    change: object, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "use_triton", lambda x: True)
    case = step_case([5, 9], 4, 2, 8, 4, 4, torch.float32)
    arguments = {
        name: getattr(case, name)
        for name in ("qkv", "rotary", "keys", "values", "page_table", "positions", "slots", "out")
    }
    with pytest.raises(ValueError, match=complaint):
        decode_attention(**(arguments | change(case)))  # type: ignore[operator]


# Its parity with the reference in Triton's interpreter is part of `test_small_batch_gemm.py`: one process for both.
gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
# heads, key/value heads, head size, page size, rotated numbers
SHAPES = [
    (32, 32, 64, 16, 32),
    (7, 7, 32, 16, 16),
    (3, 1, 48, 8, 24),
    (24, 8, 128, 32, 64),
    (6, 2, 40, 1, 20),
    (3, 1, 8, 4, 4),
    (16, 8, 128, 16, 128),
    (32, 8, 128, 16, 128),
    (28, 4, 128, 16, 128),
    (16, 2, 128, 16, 128),
]
POSITIONS = [
    [0],
    [849],
    [2047, 0, 63, 64, 126, 127, 850, 3],
    [index * 13 for index in range(33)],
    list(range(64)),
    list(range(70)),
]
CONFIGS = [
    AttentionConfig(16, 27, 1, 2, 32),
    AttentionConfig(16, 4, 1, 4, dot=True),
    AttentionConfig(64, 1, 1, 3, dot=True),
    AttentionConfig(32, 3, 2, 3),
]
CASES = [(shape, None) for shape in SHAPES] + [(shape, CONFIGS[index % 4]) for index, shape in enumerate(SHAPES)]


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.float().cpu() - wanted).norm() / wanted.norm())


def as_written(found: Tensor, wanted: Tensor, scale: float = 1.0) -> None:
    """Equal but for the neighbour that a sum in another order is rounded to; what is no number is none in both."""
    step = 2**-3 if found.dtype == FP8 else 2**-7
    torch.testing.assert_close(found.float() * scale, wanted.float() * scale, rtol=step, atol=1e-3, equal_nan=True)
    assert ((found.float() == wanted.float()) | wanted.float().isnan()).float().mean() > 0.99


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("shape", "config"), CASES)
def test_the_kernel_agrees_with_the_reference_on_the_device(
    shape: tuple[int, ...], config: AttentionConfig | None
) -> None:
    torch.manual_seed(2)
    for positions in POSITIONS:
        rounded = step_case(positions, *shape, torch.bfloat16)  # type: ignore[arg-type]
        wanted = rounded.to(torch.float32, "cpu")
        case = rounded.to(torch.bfloat16, "cuda")
        gains = torch.rand(2, shape[2]) + 0.5
        turns = torch.stack((wanted.positions // 2,) * 3, dim=1)
        # A column keeps its stride where the whole table moves to the device.
        options = [
            {"norms": (*gains.to(device), 1e-6), "turns": turns.to(device)[:, 0]} if shape[2] == 128 else {}
            for device in ("cpu", "cuda")
        ]
        reference.decode_attention(*wanted.arguments, **options[0])  # type: ignore[arg-type]
        decode_attention(*case.arguments, **options[1], config=config)  # type: ignore[arg-type]
        torch.testing.assert_close(case.out.float().cpu(), wanted.out, atol=2e-2, rtol=2e-2)
        assert distance(case.out, wanted.out) < 6e-3
        as_written(case.keys.cpu(), wanted.keys.bfloat16())
        as_written(case.values.cpu(), wanted.values.bfloat16())


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("shape", "config"), CASES)
def test_the_kernel_keeps_and_reads_fp8_as_the_reference_does(
    shape: tuple[int, ...], config: AttentionConfig | None
) -> None:
    if not has_fp8(torch.device("cuda")):
        pytest.skip("the card has no FP8")
    torch.manual_seed(3)
    k_scale, v_scale = 0.03125, 0.015625
    for positions in POSITIONS:
        rounded = step_case(positions, *shape, torch.bfloat16)  # type: ignore[arg-type]
        case = rounded.to(torch.bfloat16, "cuda").in_fp8(k_scale, v_scale)
        wanted = rounded.to(torch.float32, "cpu").in_fp8(k_scale, v_scale)
        reference.decode_attention(*wanted.arguments, k_scale=k_scale, v_scale=v_scale)
        decode_attention(*case.arguments, k_scale=k_scale, v_scale=v_scale, config=config)
        # A new key may be rounded twice, and so to the neighbour in 8 bits: of few positions each counts much.
        torch.testing.assert_close(case.out.float().cpu(), wanted.out, atol=6e-2, rtol=6e-2)
        assert distance(case.out, wanted.out) < 1e-2
        as_written(case.keys.cpu(), wanted.keys, k_scale)
        as_written(case.values.cpu(), wanted.values, v_scale)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("config", [None, *CONFIGS])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_replayed_graph_gives_the_same_bits_and_follows_the_positions(
    dtype: torch.dtype, config: AttentionConfig | None
) -> None:
    torch.manual_seed(4)
    case = step_case([850, 31, 33, 34, 500], *SHAPES[0], torch.float32).to(dtype, "cuda")
    decode_attention(*case.arguments, config=config)
    first = case.out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode_attention(*case.arguments, config=config)

    for _ in range(20):
        case.out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(case.out, first)

    case.positions.sub_(1)  # what was written last is not seen any more
    case.slots.sub_(1)
    graph.replay()
    moved = case.copy()
    reference.decode_attention(*moved.arguments)
    torch.testing.assert_close(case.out, moved.out, atol=2e-2, rtol=2e-2)
    assert not torch.equal(case.out, first)


@pytest.mark.gpu
@gpu
def test_pages_beyond_2_to_the_31_numbers_are_reached() -> None:
    kv_heads, dim, page = 32, 64, 16
    count = 2**31 // (kv_heads * dim * page) + 2
    keys, values = (
        torch.zeros(count, kv_heads, page, dim, dtype=torch.bfloat16, device="cuda").transpose(1, 2) for _ in range(2)
    )
    torch.manual_seed(5)
    small = step_case([20], kv_heads, kv_heads, dim, page, 32, torch.float32).to(torch.bfloat16, "cuda")
    old = small.page_table[0, :2].long()
    far = torch.tensor([[count - 1, count - 2]], dtype=torch.int32, device="cuda")
    for store, source in ((keys, small.keys), (values, small.values)):
        store[far[0].long()] = source[old]
    rows = torch.tensor([[20, (count - 2) * page + 4]], dtype=torch.int32, device="cuda")
    wanted = small.copy()
    decode_attention(*wanted.arguments)

    out = torch.empty_like(small.out)
    decode_attention(small.qkv, small.rotary, keys, values, far, rows[:, 0], rows[:, 1], out)

    assert torch.equal(out, wanted.out)
    assert torch.equal(keys[count - 2, 4], wanted.keys[old[1], 4])
