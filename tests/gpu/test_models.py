from itertools import islice

import pytest
import torch

from bench.gpu.models import crop_spec, make_images, prompts_of, question_of, size_with_crops
from bench.shapes import MOONDREAM2, TINY
from photonlite.images.crops import cut_crops
from photonlite.models.moondream.config import MoondreamConfig


@pytest.mark.parametrize("raw", [MOONDREAM2, TINY])
@pytest.mark.parametrize("crops", [1, 9, 13])
def test_an_image_is_made_for_every_number_of_crops_that_is_measured(raw, crops):
    spec = crop_spec(MoondreamConfig.from_dict(raw))
    [image] = islice(make_images(*size_with_crops(spec, crops)), 1)
    assert len(cut_crops(image, spec).pixels) == crops


def test_a_number_of_crops_that_no_grid_has_is_refused():
    with pytest.raises(ValueError, match="no image is cut into 12 crops"):
        size_with_crops(crop_spec(MoondreamConfig.from_dict(MOONDREAM2)), 12)


def test_no_two_images_are_alike():
    seen = {image.tobytes() for image in [*islice(make_images(8, 6), 300), *islice(make_images(8, 6), 300)]}
    assert len(seen) == 600


@pytest.mark.parametrize("tokens", [6, 10, 25])
def test_a_question_has_the_length_that_was_asked_for(tokens):
    prompts = prompts_of(MoondreamConfig.from_dict(MOONDREAM2))
    assert len(prompts.query(question_of(prompts, tokens), reasoning=False, refs=())) == tokens


def test_prompts_of_moondream2_have_ids_of_its_vocabulary():
    prompts = prompts_of(MoondreamConfig.from_dict(MOONDREAM2))
    ids = [token.id for token in (*prompts.detect("mug"), *prompts.point("mug", refs=()))]
    assert max(ids) < 51200
    assert torch.tensor(ids).min() >= 1
