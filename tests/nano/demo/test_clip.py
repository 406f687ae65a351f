import json
from itertools import islice

import numpy as np
import pytest
from PIL import Image, ImageSequence

from bench.nano.demo.clip import ACTORS, FPS, FRAMES, SIZE, save_animation, write_clip
from bench.nano.demo.clip_frames import Actor, Pose, draw_frames
from bench.nano.demo.stills import ASSETS
from bench.nano.scenes.objects import index_of
from bench.nano.scenes.sprites import FONT

needs_font = pytest.mark.skipif(not FONT.exists(), reason="needs the emoji font")
CLIP = ASSETS / "clip"
STORED = json.loads((CLIP / "truth.json").read_text(encoding="utf-8"))
TRUTH = STORED["frames"]
CAR, FIRST_BALL, SECOND_BALL = 3, 7, 8


def visible_share(actor):
    return [next((seen["visible"] for seen in row if seen["id"] == actor), 0.0) for row in TRUTH]


def frames(path):
    """RGB frames of an animation, and its duration in milliseconds."""
    with Image.open(path) as animation:
        read = [frame.copy() for frame in ImageSequence.Iterator(animation)]
    return [frame.convert("RGB") for frame in read], sum(frame.info["duration"] for frame in read)


@pytest.fixture(scope="module")
def drawn():
    return list(draw_frames(ACTORS, (240, 160), 6))


@pytest.mark.long
def test_stored_clip_is_as_long_as_its_truth():
    images, milliseconds = frames(CLIP / "clip.webp")
    assert len(images) == len(TRUTH) == FRAMES
    assert {image.size for image in images} == {SIZE}
    assert milliseconds == 1000 * FRAMES // FPS


def test_stored_clip_is_small_and_says_its_size_and_rate():
    assert sum(path.stat().st_size for path in CLIP.iterdir()) < 1_500_000
    assert (STORED["width"], STORED["height"], STORED["fps"]) == (*SIZE, FPS)


def test_rates_that_are_no_whole_milliseconds_do_not_drift(tmp_path):
    images = [Image.new("RGB", (32, 16), (8 * n, 0, 0)) for n in range(30)]
    save_animation(tmp_path / "a.webp", images, 30, quality=60)
    assert frames(tmp_path / "a.webp")[1] == 1000


def test_animation_is_stored_in_order(tmp_path):
    images = [Image.new("RGB", (32, 16), (shade, shade, shade)) for shade in (0, 90, 180, 250)]
    save_animation(tmp_path / "a.webp", images, 30, quality=90)
    shades = [np.asarray(image).mean() for image in frames(tmp_path / "a.webp")[0]]
    assert shades == pytest.approx([0, 90, 180, 250], abs=4)


def test_every_actor_is_in_the_vocabulary_and_seen():
    assert all(index_of(actor.name) is not None for actor in ACTORS)
    assert {(seen["id"], seen["name"]) for row in TRUTH for seen in row} == {
        (place, actor.name) for place, actor in enumerate(ACTORS)
    }


def test_stored_boxes_lie_inside_the_frame():
    for row in TRUTH:
        for seen in row:
            x0, y0, x1, y1 = seen["box"]
            assert 0 <= x0 < x1 <= 1
            assert 0 <= y0 < y1 <= 1
            assert 0 < seen["visible"] <= 1


def test_car_enters_is_covered_comes_back_and_leaves():
    shares = visible_share(CAR)
    assert shares[0] == shares[-1] == 0
    inside = np.flatnonzero(shares)
    start, end = inside[0] + 20, inside[-1] - 20
    covered = int(np.argmin(shares[start:end])) + start
    assert shares[covered] < 0.1
    assert max(shares[:covered]) > 0.99
    assert max(shares[covered:]) > 0.9


def test_covered_object_has_a_smaller_box():
    car = [seen for row in TRUTH for seen in row if seen["id"] == CAR]
    widths = [(seen["visible"], seen["box"][2] - seen["box"][0]) for seen in car]
    whole = max(width for visible, width in widths if visible > 0.99)
    assert all(width < 0.8 * whole for visible, width in widths if visible < 0.4)


def test_one_ball_leaves_and_another_enters():
    first, second = visible_share(FIRST_BALL), visible_share(SECOND_BALL)
    assert first[0] > 0
    assert first[-1] == 0
    assert second[0] == 0
    assert second[-1] > 0


def test_nothing_jumps_between_frames():
    for a, b in zip(TRUTH, [*TRUTH[1:], TRUTH[0]], strict=True):
        before = {seen["id"]: seen["box"] for seen in a if seen["visible"] == 1}
        for seen in b:
            if seen["visible"] == 1 and seen["id"] in before:
                assert np.abs(np.subtract(seen["box"], before[seen["id"]])).max() < 0.03


@pytest.mark.long
@needs_font
def test_truth_is_the_visible_pixels(drawn):
    for frame in drawn:
        height, width = frame.owner.shape
        assert set(np.unique(frame.owner)) == {-1, *range(len(frame.seen))}
        for place, seen in enumerate(frame.seen):
            rows, columns = np.nonzero(frame.owner == place)
            box = (columns.min() / width, rows.min() / height, (columns.max() + 1) / width, (rows.max() + 1) / height)
            assert seen.box == pytest.approx(box)


@needs_font
def test_owned_pixels_show_the_object():
    # A red square before the desk: its pixels are red, and hardly any other pixel is.
    [frame] = draw_frames((Actor("red square", 0.3, lambda time: Pose(0.5, 0.9)),), (240, 160), 1)
    pixels = np.asarray(frame.image).astype(int)
    red = (pixels[..., 0] > 180) & (pixels[..., 1] < 90)
    owned = frame.owner == 0
    assert (red & owned).sum() > 0.9 * owned.sum()
    assert (red & ~owned).sum() < 0.02 * owned.sum()


@needs_font
def test_objects_cut_by_the_border_count_the_lost_pixels():
    [frame] = draw_frames((Actor("red square", 0.3, lambda time: Pose(0.0, 0.9)),), (240, 160), 1)
    [seen] = frame.seen
    assert seen.visible == pytest.approx(0.5, abs=0.03)
    assert seen.box[0] == 0


@pytest.mark.long
@needs_font
def test_drawing_is_deterministic(drawn):
    again = list(islice(draw_frames(ACTORS, (240, 160), 6), 2))
    assert all(np.array_equal(a.image, b.image) and a.seen == b.seen for a, b in zip(drawn[:2], again, strict=True))


@needs_font
def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="flux capacitor"):
        list(draw_frames((Actor("flux capacitor", 0.2, lambda time: Pose(0.5, 0.9)),), (240, 160), 1))


@pytest.mark.long
@needs_font
def test_stored_truth_is_what_is_drawn(tmp_path):
    write_clip(tmp_path, count=3)
    # Frame 50 of 150 is frame 1 of 3.
    small = json.loads((tmp_path / "truth.json").read_text(encoding="utf-8"))
    assert small["frames"] == [TRUTH[0], TRUTH[50], TRUTH[100]]
    assert len(frames(tmp_path / "clip.webp")[0]) == 3
