import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from photonlite.kernels.fp8 import has_fp8
from photonlite.models.fused_vision import fastest_head_size
from photonlite.models.moondream.config import VisionConfig
from photonlite.models.moondream.fused.vision import FusedEncoder, layers_of
from photonlite.models.moondream.vision import VisionEncoder
from tests.tiny import tiny_config, tiny_model

SHAPES = [
    pytest.param({}, id="heads-of-6"),
    pytest.param({"enc_dim": 21, "enc_n_heads": 3, "enc_patch_size": 2, "crop_size": 6, "enc_ff_dim": 5}, id="odd"),
    pytest.param({"enc_dim": 8, "enc_n_heads": 1, "overlap_margin": 0, "proj_inner_dim": 7}, id="one-head"),
]


def encoder_of(**vision: int) -> VisionEncoder:
    return tiny_model(tiny_config(vision=vision)).vision


def pixels_of(encoder: VisionEncoder, crops: int) -> Tensor:
    size = encoder.config.crop_size
    return torch.randint(0, 256, (crops, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth.double()).norm() / truth.double().norm())


@pytest.mark.parametrize("wider", [0, 1, 8])
@pytest.mark.parametrize("vision", SHAPES)
def test_features_are_those_of_the_plain_encoder(vision: dict[str, int], wider: int) -> None:
    plain = encoder_of(**vision).double()
    head_size = plain.config.enc_dim // plain.config.enc_n_heads + wider
    pixels = pixels_of(plain, 3)

    fused = FusedEncoder(plain, head_size=head_size)

    torch.testing.assert_close(fused.encode(pixels), plain.encode(pixels), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("tiling", [(1, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize("vision", SHAPES)
def test_embeddings_are_those_of_the_plain_encoder(vision: dict[str, int], tiling: tuple[int, int]) -> None:
    plain = encoder_of(**vision).double()
    features = plain.encode(pixels_of(plain, 1 if tiling == (1, 1) else 1 + math.prod(tiling)))

    found = FusedEncoder(plain).project(features, tiling)

    torch.testing.assert_close(found, plain.project(features, tiling), rtol=1e-10, atol=1e-10)


def test_rounding_costs_no_more_than_in_the_plain_encoder() -> None:
    exact = encoder_of(enc_dim=48, enc_ff_dim=96, enc_n_layers=4)
    pixels = pixels_of(exact, 4)
    truth = exact.double().encode(pixels)
    rounded = encoder_of(enc_dim=48, enc_ff_dim=96, enc_n_layers=4).bfloat16()
    for one, other in zip(exact.parameters(), rounded.parameters(), strict=True):
        one.copy_(other)  # both start from the same rounded weights
    truth = exact.encode(pixels)

    found = error(FusedEncoder(rounded, head_size=32).encode(pixels), truth)

    assert 0 < found < 1.2 * error(rounded.encode(pixels), truth)


def test_fp8_stays_near_the_plain_encoder_in_features_and_embeddings() -> None:
    plain = encoder_of(enc_dim=48, enc_ff_dim=96, enc_n_layers=4)
    pixels = pixels_of(plain, 3)
    features = plain.encode(pixels)

    fused = FusedEncoder(plain, fp8=True)

    assert 0.002 < error(fused.encode(pixels), features) < 0.08
    assert 0.002 < error(fused.project(features, (1, 2)), plain.project(features, (1, 2))) < 0.08


def test_full_precision_takes_no_second_copy_of_the_large_weights() -> None:
    plain = encoder_of()
    fused = FusedEncoder(plain)

    with torch.no_grad():
        for parameter in plain.blocks.parameters():
            if parameter.ndim == 2:
                parameter.mul_(1.5)

    torch.testing.assert_close(fused.encode(pixels_of(plain, 1)), plain.encode(pixels_of(plain, 1)))


def test_on_the_cpu_the_plain_encoder_serves_unless_fp8_is_wanted() -> None:
    model = tiny_model(tiny_config())

    assert model.crop_encoder() is model.vision
    assert isinstance(model.crop_encoder(fp8=True), FusedEncoder)
    assert fastest_head_size(layers_of(model.vision)) == 6


def test_the_parameters_keep_their_names() -> None:
    model = tiny_model(tiny_config())
    names = list(model.state_dict())

    model.crop_encoder(fp8=True)

    assert list(model.state_dict()) == names


card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
REAL = dataclasses.replace(VisionConfig(), enc_n_layers=2)


def real_encoder(seed: int = 0) -> VisionEncoder:
    """Two blocks of Moondream 2's shape, with weights that keep the scale of activations."""
    encoder = VisionEncoder(REAL)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            scale = 0.3 if parameter.ndim == 1 or name == "pos_emb" else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            if "ln" in name and name.endswith("weight"):
                parameter.add_(1)
    return encoder.requires_grad_(False).eval().bfloat16().cuda()


def truth_of(plain: VisionEncoder, pixels: Tensor) -> Tensor:
    wide = VisionEncoder(REAL).cuda().requires_grad_(False)
    wide.load_state_dict(plain.state_dict())
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return wide.encode(pixels)


@pytest.mark.gpu
@card
@pytest.mark.parametrize("head_size", [72, 80])
@pytest.mark.parametrize("crops", [1, 3, 13])
def test_on_a_card_rounding_costs_no_more_than_in_the_plain_encoder(crops: int, head_size: int) -> None:
    plain = real_encoder()
    pixels = pixels_of(plain, crops).cuda()
    truth = truth_of(plain, pixels)

    found = error(FusedEncoder(plain, head_size=head_size).encode(pixels), truth)

    assert found < 1.2 * error(plain.encode(pixels), truth)


@pytest.mark.gpu
@card
@pytest.mark.parametrize("tiling", [(1, 1), (2, 3), (3, 4)])
def test_on_a_card_embeddings_are_those_of_the_plain_encoder(tiling: tuple[int, int]) -> None:
    plain = real_encoder()
    count = 1 if tiling == (1, 1) else 1 + math.prod(tiling)
    features = torch.randn(count, 729, 1152, device="cuda", dtype=torch.bfloat16)

    found, wanted = FusedEncoder(plain).project(features, tiling), plain.project(features, tiling)

    assert error(found, wanted) < 0.01


@pytest.mark.gpu
@card
@pytest.mark.parametrize("head_size", [72, 80])
def test_on_a_card_fp8_stays_near_the_plain_encoder(head_size: int) -> None:
    if not has_fp8(torch.device("cuda")):
        pytest.skip("this card does not multiply e4m3")
    plain = real_encoder()
    pixels = pixels_of(plain, 2).cuda()
    features = plain.encode(pixels)

    fused = FusedEncoder(plain, fp8=True, head_size=head_size)

    assert error(fused.encode(pixels), features) < 0.08
    assert error(fused.project(features[:1], (1, 1)), plain.project(features[:1], (1, 1))) < 0.08


@pytest.mark.gpu
@card
def test_the_measured_head_size_is_at_least_its_own() -> None:
    assert fastest_head_size(layers_of(real_encoder())) in (72, 80)
