import itertools
import json
from pathlib import Path

import pytest
from PIL import Image

from bench.nano.demo import SIZE, STILLS
from bench.nano.objects import index_of

ASSETS = Path(__file__).parents[2] / "assets"
TRUTH = json.loads((ASSETS / "stills.json").read_text(encoding="utf-8"))
NAMES = [still.name for still in STILLS]


@pytest.mark.parametrize("name", NAMES)
def test_picture_is_small_enough_for_a_readme(name):
    path = ASSETS / f"{name}.png"
    assert path.stat().st_size < 600_000
    with Image.open(path) as image:
        assert (image.size, image.mode) == (SIZE, "RGB")


@pytest.mark.parametrize("still", STILLS, ids=NAMES)
def test_truth_lists_what_is_laid_out(still):
    assert [item["name"] for item in TRUTH[still.name]] == [item.name for item in still.items]


@pytest.mark.parametrize("name", NAMES)
def test_picture_stays_in_the_domain(name):
    width, height = SIZE
    items = TRUTH[name]
    assert 1 <= len(items) <= 10
    for item in items:
        assert index_of(item["name"]) is not None
        x0, y0, x1, y1 = item["extent"]
        assert 0.08 <= max((x1 - x0) * width, (y1 - y0) * height) / height <= 0.45
        assert 0 <= x0 < x1 <= 1
        assert 0 <= y0 < y1 <= 1
    for a, b in itertools.combinations((item["extent"] for item in items), 2):
        wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
        smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
        assert max(wide, 0) * max(high, 0) <= 0.3 * smaller


@pytest.mark.parametrize("still", STILLS, ids=NAMES)
def test_rotation_stays_in_the_domain(still):
    assert all(abs(item.angle) <= 25 for item in still.items)


def test_desk_has_the_bananas_that_the_demo_looks_for():
    assert sum(item["name"] == "banana" for item in TRUTH["desk"]) >= 2
