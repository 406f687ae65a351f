from itertools import islice

import numpy as np
import pytest

from bench.gpu import preprocessing
from bench.gpu.clock import Clock
from bench.gpu.models import crop_spec, make_images
from bench.gpu.preprocessing import Preprocessing, pillow_crops, upload_bandwidth
from bench.shapes import MOONDREAM2, TINY
from photonlite.models.moondream.config import MoondreamConfig
from tests.tiny import CPU


@pytest.mark.parametrize(
    ("raw", "size"), [(MOONDREAM2, (640, 480)), (TINY, (42, 42)), (TINY, (20, 90)), (TINY, (90, 60))]
)
def test_the_engines_crops_are_pillows_to_the_last_bit(raw, size):
    spec = crop_spec(MoondreamConfig.from_dict(raw))
    [image] = islice(make_images(*size), 1)
    with Preprocessing(Clock(CPU), spec) as path:
        found = path.crops(image)
        assert np.array_equal(found.numpy(), pillow_crops(image, spec))
        assert path.equal(image)


def test_one_wrong_bit_is_noticed(monkeypatch):
    def wrong(image, spec):
        crops = pillow_crops(image, spec).copy()
        crops[-1, -1, -1, -1] ^= 1
        return crops

    monkeypatch.setattr(preprocessing, "pillow_crops", wrong)
    [image] = islice(make_images(90, 60), 1)
    with Preprocessing(Clock(CPU), crop_spec(MoondreamConfig.from_dict(TINY))) as path:
        assert not path.equal(image)


def test_copies_have_a_bandwidth():
    assert upload_bandwidth(Clock(CPU), size=1 << 12) > 0
