"""Compares all fused parts with the plain modules in Triton's interpreter; see `tests.kernels.interpreter`."""

import torch

from photonlite.kernels.triton_utils import INTERPRETED
from photonlite.models.paligemma.fused.vision import FusedTower
from tests.models.paligemma.fused import test_decode, test_prefill, test_vision
from tests.models.paligemma.fused.test_decode import CONFIGS, random_text


def compare_decoder(name: str) -> None:
    text = random_text(CONFIGS[name])
    case, prompts = test_prefill.Case(text, torch.float32), test_prefill.fused_prefill(text)
    for spans in (test_prefill.PROMPTS, test_prefill.LATER):
        x = case.input(spans)
        torch.testing.assert_close(case.fused(prompts, spans, x), case.plain(spans, x), atol=1e-4, rtol=1e-4)
    found, wanted = (test_prefill.stored(cache) for cache in case.caches)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)

    fused, plain = (test_decode.Context(text, [31, 0, 63, 64, 7]) for _ in range(2))
    x = torch.randn(5, text.config.dim)
    found, wanted = fused.fused(test_decode.fused_decode(text), x), plain.plain(x)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def compare_tower(name: str, wider: int) -> None:
    config = test_vision.CONFIGS[name]
    plain, grids = test_vision.tower_of(config), [(config.grid, config.grid)] * 2
    patches, fused = test_vision.patches_of(config, 2), FusedTower(plain, head_size=config.dim // config.heads + wider)
    torch.testing.assert_close(fused.encode(patches, grids), plain.encode(patches, grids), atol=1e-5, rtol=1e-4)


def main() -> None:
    assert INTERPRETED
    for name in CONFIGS:
        compare_decoder(name)
    compare_tower("heads of 7", 1)
    print("fused parts agree")
