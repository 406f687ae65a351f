import json
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from bench.nano.demo import clip
from bench.nano.demo.clip import CLIP, FPS, FRAMES, SIZE, actors, frames, load_truth, save_animation
from bench.nano.demo.clip_frames import Actor, Pose, draw_frames
from bench.nano.scenes.objects import index_of
from bench.nano.scenes.sprites import FONT

needs_font = pytest.mark.skipif(not FONT.exists(), reason="needs the emoji font")
TRUTH = load_truth()


def rows_of(actor_id):
    return [next((seen for seen in row if seen.id == actor_id), None) for row in TRUTH]


@pytest.fixture(scope="module")
def drawn():
    return list(draw_frames(actors(3), (240, 160), 6, 3))


@pytest.mark.long
def test_stored_clip_is_small_and_whole():
    assert sum(path.stat().st_size for path in CLIP.iterdir()) < 1_500_000
    read = list(frames())
    assert len(read) == len(TRUTH) == FRAMES
    assert {(frame.size, frame.mode) for frame in read} == {(SIZE, "RGB")}
    stored = json.loads((CLIP / "truth.json").read_text(encoding="utf-8"))
    assert (stored["width"], stored["height"], stored["fps"]) == (*SIZE, FPS)


def milliseconds(path):
    total = 0
    with Image.open(path) as animation:
        for number in range(animation.n_frames):
            animation.seek(number)
            animation.load()
            total += animation.info["duration"]
    return total


@pytest.mark.long
def test_stored_clip_lasts_as_long_as_its_rate_says():
    assert milliseconds(CLIP / "clip.webp") == 1000 * FRAMES // FPS


def test_rates_that_are_no_whole_milliseconds_do_not_drift(tmp_path):
    save_animation(tmp_path / "a.webp", [Image.new("RGB", (32, 16), (8 * n, 0, 0)) for n in range(30)])
    assert milliseconds(tmp_path / "a.webp") == 1000


def test_every_object_is_in_the_vocabulary_and_seen():
    names = {actor.id: actor.name for actor in actors()}
    assert len(names) == len(actors())
    assert all(index_of(name) is not None for name in names.values())
    assert {(seen.id, seen.name) for row in TRUTH for seen in row} == set(names.items())


def test_boxes_lie_inside_the_frame():
    for row in TRUTH:
        for seen in row:
            x0, y0, x1, y1 = seen.box
            assert 0 <= x0 < x1 <= 1
            assert 0 <= y0 < y1 <= 1
            assert 0 < seen.visible <= 1


def test_car_enters_is_covered_comes_back_and_leaves():
    car = rows_of(3)
    assert car[0] is None
    assert car[-1] is None
    middle = [number for number, seen in enumerate(car) if seen is not None]
    shares = [0.0 if seen is None else seen.visible for seen in car[middle[0] : middle[-1] + 1]]
    covered = int(np.argmin(shares[20:-20])) + 20
    assert shares[covered] < 0.1
    assert max(shares[:covered]) > 0.99
    assert max(shares[covered:]) > 0.9


def test_covered_object_has_a_smaller_box():
    widths = [(seen.visible, seen.box[2] - seen.box[0]) for seen in rows_of(3) if seen is not None]
    whole = max(width for visible, width in widths if visible > 0.99)
    assert all(width < 0.8 * whole for visible, width in widths if visible < 0.4)


def test_one_ball_leaves_and_another_enters():
    first, second = ([seen is not None for seen in rows_of(ball)] for ball in (7, 8))
    assert first[0]
    assert not first[-1]
    assert not second[0]
    assert second[-1]


def test_nothing_jumps_between_frames():
    for a, b in zip(TRUTH, [*TRUTH[1:], TRUTH[0]], strict=True):
        before = {seen.id: seen for seen in a}
        for seen in b:
            if seen.visible == 1 and seen.id in before and before[seen.id].visible == 1:
                assert np.abs(np.subtract(seen.box, before[seen.id].box)).max() < 0.03


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
    # A red square before the desk: what it owns is red, and what is red it owns.
    actor = Actor(0, "red square", 0.3, lambda time: Pose(0.5, 0.9))
    [frame] = draw_frames((actor,), (240, 160), 1, 3)
    pixels = np.asarray(frame.image).astype(int)
    red = (pixels[..., 0] > 180) & (pixels[..., 1] < 90)
    owned = frame.owner == 0
    assert (red & owned).sum() > 0.9 * owned.sum()
    assert (red & ~owned).sum() < 0.02 * owned.sum()


@needs_font
def test_things_cut_by_the_border_count_the_lost_pixels():
    actor = Actor(0, "red square", 0.3, lambda time: Pose(0.0, 0.9))
    [frame] = draw_frames((actor,), (240, 160), 1, 3)
    [seen] = frame.seen
    assert seen.visible == pytest.approx(0.5, abs=0.03)
    assert seen.box[0] == 0


@pytest.mark.long
@needs_font
def test_drawing_is_deterministic(drawn):
    again = list(islice(draw_frames(actors(3), (240, 160), 6, 3), 2))
    assert all(np.array_equal(a.image, b.image) and a.seen == b.seen for a, b in zip(drawn[:2], again, strict=True))
    [other] = draw_frames(actors(4), (240, 160), 1, 4)
    assert not np.array_equal(other.image, drawn[0].image)


@needs_font
def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="flux capacitor"):
        list(draw_frames((Actor(0, "flux capacitor", 0.2, lambda time: Pose(0.5, 0.9)),), (240, 160), 1, 3))


@pytest.mark.long
@needs_font
def test_stored_truth_is_what_is_drawn(tmp_path):
    clip.write_clip(tmp_path, count=3)
    small = load_truth(tmp_path / "truth.json")
    # Frame 50 of 150 is frame 1 of 3.
    assert small == [TRUTH[0], TRUTH[50], TRUTH[100]]
    assert len(list(frames(tmp_path / "clip.webp"))) == 3


def test_animation_comes_back_in_order(tmp_path):
    images = [Image.new("RGB", (32, 16), (shade, shade, shade)) for shade in (0, 90, 180, 250)]
    save_animation(tmp_path / "a.webp", images, quality=90)
    shades = [np.asarray(frame).mean() for frame in frames(tmp_path / "a.webp")]
    assert shades == pytest.approx([0, 90, 180, 250], abs=4)
