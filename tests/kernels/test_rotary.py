import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.reference import attention as reference
from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.rotary import rotary_gelu_write, rotate_heads
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.layers import rotary_table, rotate
from tests.kernels.prompts import head_major


def table(rotary_dim: int) -> Tensor:
    return torch.stack(rotary_table(torch.arange(100), rotary_dim, 10_000.0)).squeeze(2)


@given(
    heads=st.sampled_from([(1, 1), (3, 1), (6, 2)]),
    dim=st.sampled_from([4, 12]),
    page=st.sampled_from([1, 8]),
    inside=st.sampled_from([0, 5]),
    count=st.integers(1, 7),
)
@settings(max_examples=30)
def test_every_part_goes_where_it_belongs(heads: tuple[int, int], dim: int, page: int, inside: int, count: int) -> None:
    torch.manual_seed(0)
    width = sum(heads) * dim + heads[1] * dim
    h = torch.randn(count, width + inside, dtype=torch.float64)
    positions = torch.randint(0, 100, (count,), dtype=torch.int32)
    slots = torch.randperm(10 * page)[:count].int()
    keys, values = (head_major(10, page, heads[1], dim, torch.float64) for _ in range(2))

    q, cat = rotary_gelu_write(h, positions, slots, table(dim // 2), keys, values, heads[0])

    rotary = rotary_table(positions, dim // 2, 10_000.0)
    wanted = h[:, :width].unflatten(1, (-1, dim)).split((heads[0], heads[1], heads[1]), dim=1)
    assert torch.equal(q, rotate(wanted[0], *rotary))
    assert torch.equal(cat[:, heads[0] * dim :], functional.gelu(h[:, width:], approximate="tanh"))
    at = slots.long() // page, slots.long() % page
    for store, stored in ((keys, rotate(wanted[1], *rotary)), (values, wanted[2])):
        assert torch.equal(store[at], stored)
        assert int(store.isfinite().all(dim=(-1, -2)).sum()) == count


def test_each_pair_is_turned_by_its_axis_behind_the_norm_of_its_head() -> None:
    torch.manual_seed(1)
    dim, page = 8, 4
    h = torch.randn(5, 4 * dim, dtype=torch.float64)  # two heads of queries, one of keys and values
    positions = torch.randint(0, 100, (5, 3), dtype=torch.int32)
    axes, gains = torch.tensor([0, 2, 1, 0], dtype=torch.int32), torch.randn(2, dim, dtype=torch.float64)
    keys, values = (head_major(3, page, 1, dim, torch.float64) for _ in range(2))
    slots = torch.randperm(12)[:5].int()

    q, _ = rotary_gelu_write(h, positions, slots, table(dim), keys, values, 2, axes=axes, norms=(*gains, 1e-6))

    heads = h.view(5, 4, dim)
    normal = heads / (heads.square().mean(-1, keepdim=True) + 1e-6) ** 0.5
    angles = [rotary_table(positions[:, axis], dim, 10_000.0) for axis in axes]
    cos, sin = (torch.stack([each[which][..., pair] for pair, each in enumerate(angles)], dim=-1) for which in (0, 1))
    torch.testing.assert_close(q, rotate(normal[:, :2] * gains[0], cos, sin))
    at = slots.long() // page, slots.long() % page
    torch.testing.assert_close(keys[at], rotate(normal[:, 2:3] * gains[1], cos, sin))
    assert torch.equal(values[at], heads[:, 3:])


def test_nothing_is_stored_without_slots() -> None:
    keys, values = (head_major(3, 4, 1, 4, torch.float32) for _ in range(2))
    q, _ = rotary_gelu_write(torch.randn(2, 14), torch.tensor([3, 4]).int(), None, table(2), keys, values, 1)
    assert keys.isnan().all()
    assert values.isnan().all()
    assert q.shape == (2, 1, 4)


def test_numbers_too_large_for_8_bits_saturate_and_nan_stays() -> None:
    keys, values = (head_major(1, 2, 1, 4, FP8) for _ in range(2))
    h = torch.tensor([[0.0, 0.0, 3.0, torch.nan, 900.0, -900.0, 3.0, torch.nan]])

    rotary_gelu_write(h, torch.zeros(1).int(), torch.tensor([1]).int(), table(2), keys, values, 0, v_scale=0.5)

    assert values[0, 1, 0, :3].float().tolist() == [448.0, -448.0, 6.0]
    assert values[0, 1, 0, 3].isnan()
    assert keys[0, 1, 0, 2].item() == 3.0


def test_queries_and_keys_are_rotated_and_values_stay() -> None:
    torch.manual_seed(0)
    qkv, rotary = torch.randn(5, 3 * 2 * 12), torch.randn(2, 5, 6)
    before = qkv.clone().view(5, 3, 2, 12)

    rotate_heads(qkv, rotary, 2)

    q, k, v = qkv.view(5, 3, 2, 12).unbind(1)
    cos, sin = rotary[:, :, None]
    torch.testing.assert_close(q, rotate(before[:, 0], cos, sin))
    torch.testing.assert_close(k, rotate(before[:, 1], cos, sin))
    assert torch.equal(v, before[:, 2])


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize(
    "shape", [(32, 32, 64, 16, 8192), (3, 1, 48, 8, 0), (24, 8, 128, 128, 33), (6, 2, 40, 1, 4000)]
)
def test_the_kernel_agrees_with_the_reference_on_the_device(
    shape: tuple[int, int, int, int, int], kv_dtype: torch.dtype | None
) -> None:
    if kv_dtype and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the card has no FP8")
    torch.manual_seed(1)
    heads, kv_heads, dim, page, inside = shape
    h = (torch.randn(130, (heads + 2 * kv_heads) * dim + inside) * 2).to(torch.bfloat16)
    places = torch.stack((torch.randint(0, 100, (130,)), torch.randperm(130 + page)[:130])).int().t().contiguous()
    pages = 2 + 130 // page
    truth = [head_major(pages, page, kv_heads, dim, kv_dtype or torch.bfloat16) for _ in range(2)]
    mine = [store.transpose(1, 2).contiguous().cuda().transpose(1, 2) for store in truth]
    case = h, places[:, 0], places[:, 1], table(dim // 2)
    scales = {"k_scale": 0.5, "v_scale": 0.25} if kv_dtype else {}  # nothing else is scaled
    wanted = reference.rotary_gelu_write(*case, *truth, heads, **scales)

    moved = places.cuda()
    found = rotary_gelu_write(h.cuda(), moved[:, 0], moved[:, 1], case[3].cuda(), *mine, heads, **scales)  # type: ignore[arg-type]

    close = {"atol": 1e-2, "rtol": 1e-2}
    torch.testing.assert_close(found[0].cpu(), wanted[0], **close)
    torch.testing.assert_close(found[1].cpu()[:, heads * dim :], wanted[1][:, heads * dim :], **close)
    for store, other in zip(mine, truth, strict=True):
        # A last bit of bfloat16 may tip a number of 8 bits over to its neighbour.
        near = {"atol": 0.01, "rtol": 0.13} if kv_dtype else close
        torch.testing.assert_close(store.cpu().float(), other.float(), **near, equal_nan=True)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("heads", "dim"), [(16, 64), (16, 72), (16, 80), (2, 12)])
def test_patches_are_rotated_on_the_device_as_by_the_reference(heads: int, dim: int) -> None:
    torch.manual_seed(2)
    qkv, rotary = torch.randn(70, 3 * heads * dim).to(torch.bfloat16), torch.randn(2, 70, dim // 2)
    found, wanted = qkv.cuda(), qkv.float()

    rotate_heads(found, rotary.cuda(), heads)
    reference.rotate_heads(wanted, rotary, heads)

    torch.testing.assert_close(found.float().cpu(), wanted, rtol=8e-3, atol=1e-3)
    assert torch.equal(found[:, 2 * heads * dim :].cpu(), qkv[:, 2 * heads * dim :])
