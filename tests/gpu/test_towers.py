import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench import vision
from bench.gpu.qwen import letters, random_qwen
from bench.gpu.towers import tower_attention, tower_products
from bench.shapes import SHAPES
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.vision import VisionTower
from tests.gpu.test_commands import run

CPU = torch.device("cpu")
NAMES = ["qwen3-vl-2b", "qwen2.5-vl-3b"]
GRID = (16, 24)  # windows of 8 x 8 patches divide it


def config_of(name):
    return QwenConfig.from_dict(SHAPES[name].tiny)


def computed(tower):
    """Operations of an image's products, those of attention included."""
    patches = torch.zeros(GRID[0] * GRID[1], tower.images.patch_bytes, dtype=torch.uint8)
    with FlopCounterMode(display=False) as counter, torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
        tower.encode(patches, [GRID])
    return sum(counter.get_flop_counts()["Global"].values())


@pytest.mark.parametrize("name", NAMES)
def test_floors_count_what_the_tower_computes(name):
    tower = random_qwen(config_of(name), CPU, torch.float32).model.vision
    assert isinstance(tower, VisionTower)
    # Learned positions are interpolated by products that the floor leaves out.
    interpolated = 0
    if side := tower.config.table:
        interpolated = 2 * tower.config.dim * side * GRID[0] * (side + GRID[1])

    products = sum(one.operations for one in tower_products(tower, GRID))
    heads = tower_attention(tower.config, GRID)
    attention = sum(4 * one.batch * one.heads * one.length**2 * one.size * one.count for one in heads)
    assert products + attention + interpolated == computed(tower)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", ["raw", "tiny"])
def test_the_tokenizer_has_the_special_tokens_of_the_configuration(name, size):
    config = QwenConfig.from_dict(getattr(SHAPES[name], size))
    tokenizer = letters(config)

    assert tokenizer.special["<|image_pad|>"] == config.image_id
    assert tokenizer.special["<|vision_start|>"] == config.vision_start_id
    assert tokenizer.special["<|vision_end|>"] == config.vision_end_id
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= tokenizer.special.keys()
    assert len(set(tokenizer.special.values())) == len(tokenizer.special) >= 6
    assert tokenizer.decode(tokenizer.encode("12, mug")) == "12, mug"


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_tower_is_timed_through_the_engine(tmp_path, name):
    code, text, rows = run(vision.main, tmp_path, "--shape", name)

    assert code == 0
    [(what, row)] = rows.items()
    assert what.startswith("vision tower, 64x48")
    assert float(row[0]) > 0
    assert "## The tower and its ceilings" in text
