import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from photonlite.batch import PageCopy
from photonlite.errors import SettingsError
from photonlite.kernels.reference.attention import FP8
from photonlite.runner.buffers import KvFormat, PagedCache, fp8_scale, kv_format
from tests.runner.cached import PAGE, SHAPE
from tests.tiny import CPU


class Told:
    """A model with nothing but statistics of its keys and values."""

    def kv_statistics(self) -> list[tuple[float, float]]:
        return [(2.0, 0.003), (31.9, 32.0)]


MODEL: Any = Told()


@given(st.floats(1e-30, 1e30))
def test_a_scale_is_a_power_of_two_that_leaves_room_on_both_sides(rms: float) -> None:
    scale = fp8_scale(rms)
    assert math.frexp(scale)[0] == 0.5
    assert 2 <= rms / scale < 4


@pytest.mark.parametrize("rms", [0.0, math.nan, math.inf])
def test_weights_that_say_nothing_leave_numbers_as_they_are(rms: float) -> None:
    assert fp8_scale(rms) == 1.0


def test_keys_and_values_of_each_layer_have_a_scale_of_their_own() -> None:
    assert kv_format("fp8", MODEL, CPU, torch.float32) == KvFormat(FP8, ((1.0, 2.0**-10), (8.0, 16.0)))
    assert kv_format("auto", MODEL, CPU, torch.float16) == KvFormat(torch.float16)


def test_a_card_without_fp8_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    card = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX 3090")
    with pytest.raises(SettingsError, match=r"RTX 3090 has compute capability 8.6 and FP8 takes 8.9.*at 'auto'"):
        kv_format("fp8", MODEL, card, torch.bfloat16)
    assert kv_format("auto", MODEL, card, torch.bfloat16).dtype == torch.bfloat16

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert kv_format("fp8", MODEL, card, torch.bfloat16).dtype == FP8


def test_scales_belong_to_fp8_and_to_every_layer() -> None:
    for dtype, scales in ((torch.float64, ((1.0, 1.0),) * 2), (FP8, ((1.0, 1.0),))):
        with pytest.raises(AssertionError, match="pairs of scales"):
            PagedCache(SHAPE, 4, PAGE, CPU, dtype, scales)


@pytest.mark.parametrize("dtype", [torch.float64, FP8])
def test_copies_take_whole_pages_of_all_layers_in_their_order(dtype: torch.dtype) -> None:
    cache = PagedCache(SHAPE, 4, PAGE, CPU, dtype)
    for kept in (cache.keys, cache.values):
        kept.copy_(torch.randn(kept.shape).to(dtype))
    keys, values = cache.keys.double(), cache.values.double()

    cache.copy([PageCopy(3, 1), PageCopy(1, 2)])

    for now, before in ((cache.keys, keys), (cache.values, values)):
        for page, source in enumerate((0, 3, 3, 3)):
            assert torch.equal(now[:, page].double(), before[:, source])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, FP8])
def test_pages_that_were_taken_can_be_put_elsewhere(dtype: torch.dtype) -> None:
    scales = ((1.0, 1.0),) * SHAPE.layers if dtype == FP8 else ()
    cache = PagedCache(SHAPE, 8, PAGE, CPU, dtype, scales)
    for tensor in (cache.keys, cache.values):
        tensor.copy_(torch.randn(tensor.shape))
    keys, values = cache.keys.clone(), cache.values.clone()

    taken = cache.take(torch.tensor([5, 2]))
    cache.put(torch.tensor([1, 7]), taken)

    assert taken.nbytes == 2 * cache.page_bytes
    source = [0, 5, 2, 3, 4, 5, 6, 2]
    for tensor, before in ((cache.keys, keys), (cache.values, values)):
        assert torch.equal(tensor.float(), before.float()[:, source])
    cache.spoil(torch.tensor([3]))
    assert cache.keys[:, 3].float().isnan().all()
    assert cache.values[:, 3].float().isnan().all()
    assert not cache.keys[:, [1, 2, 4]].float().isnan().any()
