import io
import itertools

import numpy as np
import pytest
from PIL import Image

from bench.nano.scenes.batched import backgrounds
from bench.nano.scenes.held_out import scene as scenes
from bench.nano.scenes.held_out.backgrounds import (
    BACKGROUNDS,
    HELD_OUT_BACKGROUNDS,
    TRAINED_BACKGROUNDS,
    paint_background,
)
from bench.nano.scenes.held_out.scene import make_scene
from bench.nano.scenes.objects import load_objects

OBJECTS = load_objects()
SEEDS = range(24)


@pytest.fixture(scope="module")
def sprites():
    """Rounded bars of many colours and proportions: no font is needed."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[-1:1:64j, -1:1:64j]
    made = np.zeros((len(OBJECTS), 64, 64, 4), np.uint8)
    for sprite in made:
        narrow = rng.uniform(0.3, 1)
        sprite[..., :3] = rng.integers(0, 256, 3)
        sprite[..., 3] = 255 * ((x / narrow) ** 4 + y**4 < 0.95)
    return made


@pytest.fixture(scope="module")
def some_scenes(sprites):
    return [make_scene(seed, OBJECTS, sprites) for seed in SEEDS]


def overlap_of_smaller(a, b):
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(wide, 0) * max(high, 0) / min((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))


@pytest.mark.long
def test_same_seed_gives_the_same_file_and_truth(sprites, some_scenes):
    again = make_scene(3, OBJECTS, sprites)
    assert again.jpeg == some_scenes[3].jpeg
    assert again.objects == some_scenes[3].objects
    assert again.jpeg != some_scenes[4].jpeg


def test_images_stay_in_the_domain(some_scenes):
    for scene in some_scenes:
        width, height = scene.image.size
        assert 160 <= min(width, height) <= max(width, height) <= 1600
        assert max(width, height) <= 2 * min(width, height) + 1
        assert 1 <= len(scene.objects) <= 50


def test_objects_stay_in_the_domain(some_scenes):
    for scene in some_scenes:
        width, height = scene.image.size
        for item in scene.objects:
            x0, y0, x1, y1 = item.extent
            side = max((x1 - x0) * width, (y1 - y0) * height)
            assert max(16, 0.04 * min(width, height)) <= side + 1e-6
            assert side <= 0.9 * min(width, height) + 1e-6
            assert 0 <= x0 < x1 <= 1
            assert 0 <= y0 < y1 <= 1
        for a, b in itertools.combinations(scene.objects, 2):
            assert overlap_of_smaller(a.extent, b.extent) <= (0.5 if scene.arrangement == "heap" else 0.3) + 1e-6
        assert all(item.visible >= 0.25 for item in scene.objects)


def test_some_objects_overlap(some_scenes):
    assert any(item.visible < 0.95 for scene in some_scenes for item in scene.objects)


def test_small_and_large_objects_are_both_common(some_scenes):
    shares = [
        max((x1 - x0) * scene.image.width, (y1 - y0) * scene.image.height) / min(scene.image.size)
        for scene in some_scenes
        for x0, y0, x1, y1 in (item.extent for item in scene.objects)
    ]
    assert np.mean(np.array(shares) < 0.08) > 0.1
    assert np.mean(np.array(shares) > 0.2) > 0.1


def test_boxes_bound_exactly_the_visible_pixels(some_scenes):
    for scene in some_scenes:
        height, width = scene.owner.shape
        for place, item in enumerate(scene.objects):
            rows, columns = np.nonzero(scene.mask(place))
            pixels = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert item.box == pytest.approx(np.array(pixels) / (width, height, width, height))


def test_boxes_lie_where_the_image_shows_the_object(sprites, monkeypatch):
    monkeypatch.setattr(scenes, "_CLUTTERED", 0)
    magenta = np.zeros_like(sprites)
    magenta[:] = (255, 0, 255, 255)
    scene = make_scene(5, OBJECTS, magenta, background="solid", size=(400, 300), count=1)
    x0, y0, x1, y1 = np.array(scene.objects[0].box) * (400, 300, 400, 300)
    colours = np.asarray(scene.image, np.int16)
    changed = np.abs(colours - colours[0, 0]).max(axis=2) > 60
    rows, columns = np.nonzero(changed)
    assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == pytest.approx([x0, y0, x1, y1], abs=2)


def test_the_image_is_what_its_jpeg_file_shows(some_scenes):
    scene = some_scenes[0]
    with Image.open(io.BytesIO(scene.jpeg)) as file:
        assert file.format == "JPEG"
        assert np.array_equal(np.asarray(file.convert("RGB")), np.asarray(scene.image))


@pytest.mark.long
def test_about_half_of_the_scenes_repeat_a_kind(sprites):
    sizes = {"background": "solid", "size": (160, 160)}
    made = [make_scene(seed, OBJECTS, sprites, **sizes, count=1 + seed % 10) for seed in range(80)]
    repeated = [len({item.index for item in scene.objects}) < len(scene.objects) for scene in made]
    assert 0.4 < np.mean(repeated) < 0.6


@pytest.mark.long
def test_what_cannot_be_seen_is_left_out(sprites, monkeypatch):
    white = np.full((300, 400, 3), 255, np.uint8)
    monkeypatch.setattr(scenes, "paint_background", lambda *_: white)
    faint = sprites.copy()
    faint[..., :3] = 0
    faint[::2, ..., :3] = 255
    monkeypatch.setattr(scenes, "_jitter", lambda _rng, sprite, _steady: sprite)
    placed = [item.index for seed in range(8) for item in make_scene(seed, OBJECTS, faint, size=(400, 300)).objects]
    assert placed
    assert all(index % 2 for index in placed)


def test_objects_named_by_a_colour_keep_their_hue(sprites):
    green = sprites.copy()
    green[..., :3] = (20, 160, 60)
    steady = next(i for i, item in enumerate(OBJECTS) if item.name == "green circle")
    other = next(i for i, item in enumerate(OBJECTS) if item.name == "frog")

    def hues(index):
        jittered = [
            scenes._jitter(np.random.default_rng(seed), green[index], steady_hue=index == steady) for seed in range(9)
        ]
        colours = np.array([sprite[0, 0, :3] for sprite in jittered], float)
        low = colours.min(axis=1, keepdims=True)
        return ((colours - low) / (colours.max(axis=1, keepdims=True) - low))[:, 2]

    assert np.ptp(hues(steady)) < 0.05
    assert np.ptp(hues(other)) > 0.1


def test_chosen_size_background_and_count_are_kept(sprites):
    scene = make_scene(1, OBJECTS, sprites, background="maze", size=(640, 480), count=3)
    assert scene.image.size == (640, 480)
    assert scene.background == "maze"
    assert len(scene.objects) == 3


def test_half_of_the_scenes_are_crowds():
    counts = np.array([scenes._crowd(np.random.default_rng(seed)) for seed in range(800)])
    shares = [((counts > low) & (counts <= high)).mean() for low, high in ((0, 10), (10, 25), (25, 50))]
    assert shares == pytest.approx([0.5, 0.25, 0.25], abs=0.05)
    assert (counts.min(), counts.max()) == (1, 50)


def test_crowds_have_few_kinds_some_of_one_alone():
    kinds = [scenes._kinds(np.random.default_rng(seed), len(OBJECTS), 40) for seed in range(100)]
    assert {len(chosen) for chosen in kinds} == {40}
    assert max(len(set(chosen)) for chosen in kinds) == 10
    assert max(max(chosen.count(kind) for kind in chosen) for chosen in kinds) > 36


def test_words_cover_objects_and_are_background(sprites, monkeypatch):
    monkeypatch.setattr(scenes, "_CLUTTERED", 1)
    made = [make_scene(seed, OBJECTS, sprites, background="solid", size=(300, 300), count=8) for seed in range(12)]
    assert sum(scene.cluttered for scene in made) > 6
    assert any(item.visible < 1 for scene in made for item in scene.objects)
    for scene in made:
        assert len(scene.objects) <= 8
        assert scene.owner.max() == len(scene.objects) - 1
        assert all(item.visible >= 0.25 for item in scene.objects)


@pytest.mark.long
def test_some_scenes_turn_objects_by_any_angle(sprites, monkeypatch):
    angles = []
    make = scenes.make_tile
    monkeypatch.setattr(scenes, "make_tile", lambda *of: angles.append(abs(of[2])) or make(*of))
    turned = [
        make_scene(seed, OBJECTS, sprites, background="solid", size=(200, 200), count=2).turned for seed in range(60)
    ]
    assert 0.08 < np.mean(turned) < 0.35
    assert max(angles) > 90
    assert 0.5 < np.mean(np.array(angles) <= 25) < 0.95


def test_objects_and_sprites_must_belong_together(sprites):
    with pytest.raises(ValueError, match="sprites"):
        make_scene(0, OBJECTS, sprites[:-1])


def test_held_out_backgrounds_are_not_drawn_in_training():
    trained = {kind.__name__ for kind in backgrounds.KINDS}
    assert not trained & set(HELD_OUT_BACKGROUNDS)
    assert not set(TRAINED_BACKGROUNDS) & set(HELD_OUT_BACKGROUNDS)
    assert len(HELD_OUT_BACKGROUNDS) >= 6


def test_both_sorts_of_background_are_drawn(some_scenes):
    held_out = [scene.background in HELD_OUT_BACKGROUNDS for scene in some_scenes]
    assert 0.25 < np.mean(held_out) < 0.75


@pytest.mark.parametrize("kind", BACKGROUNDS)
def test_background_fills_the_image_and_follows_the_seed(kind):
    first, again, other = (paint_background(kind, np.random.default_rng(seed), 1000, 520) for seed in (1, 1, 2))
    assert first.shape == (520, 1000, 3)
    assert first.dtype == np.uint8
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    if kind != "solid":
        assert np.ptp(first) > 10
