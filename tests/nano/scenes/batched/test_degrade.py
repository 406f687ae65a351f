import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from bench.nano.scenes.batched import degrade as module
from bench.nano.scenes.batched.degrade import degrade, jpeg

QUALITIES = (40, 60, 75, 90, 98)


def psnr(one, other):
    return float(-10 * (one - other).square().mean().clamp(min=1e-9).log10())


def scenery(channels):
    """Smooth shades with a few hard edges."""
    generator = torch.Generator().manual_seed(0)
    cells = torch.rand(1, channels, 6, 6, generator=generator)
    made = functional.interpolate(cells, size=(96, 96), mode="bicubic").clamp(0, 1)
    made[..., 30:50, 20:70] = torch.rand(1, channels, 1, 1, generator=generator)
    return made.mul(255).round().div(255).expand(1, 3, 96, 96)


def through_pillow(image, quality):
    pixels = image[0].permute(1, 2, 0).mul(255).round().byte().numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling="4:2:0")
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)[None] / 255


def simulated(image, quality):
    return jpeg(image, torch.tensor([float(quality)]))


@pytest.mark.parametrize("quality", QUALITIES)
@pytest.mark.parametrize(
    "image",
    [pytest.param(scenery(1), id="grey"), pytest.param(scenery(3), id="colours")],
)
def test_jpeg_is_near_what_a_real_encoder_does(image, quality):
    real = through_pillow(image, quality)
    assert psnr(simulated(image, quality), real) > min(50, max(40, psnr(real, image) + 3))


@pytest.mark.parametrize("colour", [(1.0, 0.41, 0.7), (0.95, 0.8, 0.1), (0.9, 0.3, 0.2), (0.2, 0.3, 0.9)])
def test_jpeg_keeps_the_colour_of_a_plain_image(colour):
    plain = torch.tensor(colour).view(1, 3, 1, 1).expand(1, 3, 32, 32)
    assert float((simulated(plain, 90) - plain).abs().max()) < 0.02


def test_jpeg_keeps_smooth_images():
    ramp = torch.linspace(0, 1, 64).expand(1, 3, 64, 64)
    assert psnr(simulated(ramp, 90), ramp) > 42
    assert psnr(simulated(ramp, 40), ramp) > 35


def test_higher_quality_is_nearer_to_the_image():
    # One batch: every image has a quality of its own.
    image = scenery(1) + 0.1 * torch.randn(1, 1, 96, 96, generator=torch.Generator().manual_seed(1))
    image = image.clamp(0, 1).expand(len(QUALITIES), 3, 96, 96)
    made = jpeg(image, torch.tensor([float(q) for q in QUALITIES]))
    nearness = [psnr(one, two) for one, two in zip(made, image, strict=True)]
    assert nearness == sorted(nearness)
    assert nearness[-1] > nearness[0] + 10
    for n, quality in enumerate(QUALITIES):
        assert torch.allclose(made[n : n + 1], simulated(image[:1], quality), atol=1e-5)


def test_jpeg_does_not_tell_the_images_of_a_batch_apart():
    image = torch.cat((scenery(3), scenery(3).flip(3)))
    quality = torch.tensor([50.0, 50.0])
    assert torch.allclose(jpeg(image, quality).flip(0), jpeg(image.flip(0), quality), atol=1e-5)


def test_degraded_images_are_images_and_all_spoiled():
    torch.manual_seed(0)
    clean = scenery(3)[..., :48, :48].repeat(9, 1, 3, 3)
    made = degrade(clean.clone())
    assert made.shape == clean.shape
    assert 0 <= float(made.min()) <= float(made.max()) <= 1
    assert all(float((one - two).abs().mean()) > 1e-3 for one, two in zip(made, clean, strict=True))
    assert len({one.numpy().tobytes() for one in made}) == 9


@pytest.mark.parametrize("seed", range(4))
def test_degrading_moves_nothing(seed):
    """Boxes are measured before: a bright square stays where it is, whatever the image went through."""
    torch.manual_seed(seed)
    clean = torch.full((6, 3, 288, 288), 0.1)
    clean[..., 60:180, 100:220] = 0.9
    for image in degrade(clean).mean(1):
        bright = image > (image.max() + image.min()) / 2
        rows, columns = bright.float().mean(1) > 0.2, bright.float().mean(0) > 0.2
        bounds = [float(place) for line in (rows, columns) for place in line.nonzero()[[0, -1], 0]]
        assert bounds == pytest.approx([60, 179, 100, 219], abs=1.5)


def test_a_third_goes_through_a_smaller_image(monkeypatch):
    monkeypatch.setattr(module, "_blur", lambda images: images)
    monkeypatch.setattr(module, "jpeg", lambda images, quality: images)
    monkeypatch.setattr(module, "_smaller", lambda side: side // 2)
    checks = torch.arange(288)[:, None].add(torch.arange(192)).remainder(2).float()
    made = degrade(checks.expand(9, 3, -1, -1).clone())
    # What is as fine as a pixel does not survive being halved.
    contrast = [float((one[:, ::2, ::2] - one[:, 1::2, ::2]).mean().abs()) for one in made]
    assert sum(value < 0.1 for value in contrast) == 3


def test_some_images_lose_their_colour():
    torch.manual_seed(0)
    red = torch.tensor([1.0, 0.2, 0.2]).view(1, 3, 1, 1).expand(200, 3, 16, 16).clone()
    spoiled = degrade(red)
    spread = spoiled.mean((2, 3)).amax(1) - spoiled.mean((2, 3)).amin(1)
    assert 0.02 < float((spread < 0.12).float().mean()) < 0.15
    assert 0.6 < float((spread > 0.45).float().mean()) < 0.9
