import math
from functools import cache

import pytest
import torch

from bench.nano.scenes.batched import compose, layouts
from bench.nano.scenes.batched.compose import Composer, steady_hues
from bench.nano.scenes.batched.layouts import Difficulty, Layout
from bench.nano.scenes.batched.outlines import LEAST, iou, outlines, rasterise
from bench.nano.scenes.batched.truth import TOLD
from bench.nano.scenes.objects import load_objects
from tests.nano.small import BLUE, GREEN, RED, squares
from tests.tiny import CPU

SIDE, PATCH = 160, 16
GRID = SIDE // PATCH
FULL = Difficulty().tensor(CPU)
MOST = 10  # objects of a scene: fifty take their time on a CPU
VISIBLE = 126 / 128  # of a sprite of `squares`


@cache
def composer(size=(SIDE, SIDE)):
    """Red, green and blue squares."""
    return Composer(squares(RED, GREEN, BLUE), size, GRID, CPU, entries=6, most=MOST)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def clean(monkeypatch):
    """Objects of their own colours on black, and nothing done to the image afterwards."""
    monkeypatch.setattr(compose, "tints", lambda steady, uniform: torch.eye(3, 4).expand(*steady.shape, 3, 4))
    monkeypatch.setattr(
        compose.BackgroundBank, "__call__", lambda self, batch, size, dtype: torch.zeros(batch, 3, *size)
    )
    monkeypatch.setattr(compose, "degrade", lambda images: images)


@pytest.fixture
def steady(clean, monkeypatch):
    """What is drawn between two bounds lies in their middle: objects are neither stretched nor tinted."""
    monkeypatch.setattr(
        compose, "uniform", lambda shape, low, high, device: torch.full(shape, (low + high) / 2, device=device)
    )


def compose_of(items, monkeypatch, width=1.0, height=1.0, kit=None, shear=0.0):
    """Compose one scene of (label, x, y, size, angle, mirror), in units of the short side, in the order of painting."""
    kit = kit or composer()
    rows = [*items, *[(-1, 0.0, 0.0, 0.1, 0.0, 1.0)] * (MOST - len(items))]
    label, x, y, size, angle, mirror = (torch.tensor([values]) for values in zip(*rows, strict=True))
    frame = torch.tensor([[width]]), torch.tensor([[height]])
    layout = Layout(label, x, y, size, angle, torch.full_like(angle, shear), mirror, *frame)
    monkeypatch.setattr(kit, "_layout", lambda batch, difficulty: layout)
    return kit(1, FULL)


def corners(box):
    x, y, w, h = box.tolist()
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def near(*numbers):
    return pytest.approx(numbers, abs=1.5 / SIDE)


def shows(pixels):
    """Which of the primary colours each pixel clearly is, -1 where none: ``[B, S, S]``."""
    value, channel = pixels.float().max(-1)
    others = pixels.float().sum(-1) - value
    return torch.where((value > 60) & (others < 0.25 * value), channel, -1)


def test_a_box_shrinks_to_what_later_objects_leave(steady, monkeypatch):
    left, right = (0, 0.4, 0.5, 0.32, 0.0, 1.0), (1, 0.6, 0.6, 0.32, 0.0, 1.0)
    half = 0.16 * VISIBLE
    whole_left = near(0.4 - half, 0.5 - half, 0.4 + half, 0.5 + half)
    whole_right = near(0.6 - half, 0.6 - half, 0.6 + half, 0.6 + half)

    under = compose_of([left, right], monkeypatch)
    assert under.labels[0].tolist() == [0, 1, *[-1] * 8]
    # A corner is covered, which leaves the bound as it was.
    assert corners(under.boxes[0, 0]) == whole_left
    assert corners(under.boxes[0, 1]) == whole_right
    assert shows(under.pixels)[0, int(0.55 * SIDE), int(0.5 * SIDE)] == 1

    tall = (2, 0.56, 0.5, 0.4, 0.0, 1.0)
    most = 0.2 * VISIBLE
    whole_tall = near(0.56 - most, 0.5 - most, 0.56 + most, 0.5 + most)
    under = compose_of([left, tall], monkeypatch)
    assert corners(under.boxes[0, 0]) == near(0.4 - half, 0.5 - half, 0.56 - most, 0.5 + half)
    assert corners(under.boxes[0, 1]) == whole_tall
    over = compose_of([tall, left], monkeypatch)
    assert over.labels[0, :2].tolist() == [2, 0]
    assert corners(over.boxes[0, 0]) == whole_tall
    assert corners(over.boxes[0, 1]) == whole_left


@pytest.mark.parametrize(("width", "height"), [(1.0, 1.0), (2.0, 1.0), (1.0, 1.6)])
@pytest.mark.parametrize("degrees", [0, 25, -15])
def test_a_box_is_measured_in_the_image_squeezed_into_a_square(steady, monkeypatch, width, height, degrees):
    angle = math.radians(degrees)
    scene = compose_of([(0, 0.6, 0.4, 0.4, angle, 1.0)], monkeypatch, width, height)
    half = 0.2 * VISIBLE * (math.cos(angle) + abs(math.sin(angle)))
    expected = ((0.6 - half) / width, (0.4 - half) / height, (0.6 + half) / width, (0.4 + half) / height)
    # Corners of a turned square are points: of their last pixel less than half is covered.
    assert corners(scene.boxes[0, 0]) == pytest.approx(expected, abs=(1.5 if degrees == 0 else 3) / SIDE)


def test_what_is_covered_has_no_label_and_no_box(steady, monkeypatch):
    scene = compose_of([(0, 0.5, 0.5, 0.2, 0.0, 1.0), (1, 0.5, 0.5, 0.4, 0.0, 1.0)], monkeypatch)
    assert scene.labels[0, :2].tolist() == [-1, 1]
    assert not scene.boxes[0, 0].any()
    assert not (scene.patches.labels == 0).any()


def test_a_sliver_is_not_asked_for(steady, monkeypatch):
    # One column of 6 pixels is left of the first: too few to count as visible.
    scene = compose_of([(0, 0.493, 0.5, 0.04, 0.0, 1.0), (1, 0.5, 0.5, 0.04, 0.0, 1.0)], monkeypatch)
    assert int((shows(scene.pixels) == 0).sum()) > 0
    assert scene.labels[0, :2].tolist() == [-1, 1]
    assert not (scene.patches.labels == 0).any()


def test_a_sliver_at_the_centre_of_a_patch_is_background(steady, monkeypatch):
    # Its only column is the 89th, where the centres of patches are.
    scene = compose_of([(0, 0.571, 0.553, 0.04, 0.0, 1.0), (1, 0.578, 0.553, 0.04, 0.0, 1.0)], monkeypatch)
    assert shows(scene.pixels)[0, 88, 88] == 0
    assert scene.labels[0, 0] == -1
    assert scene.patches.labels.reshape(10, 10)[5, 5] == 3
    assert int(scene.patches.labels.min()) >= 0


def test_mirroring_swaps_left_and_right(steady, monkeypatch):
    sprite = squares(RED)
    sprite[:, :, 64:127, :3] = torch.tensor(BLUE, dtype=torch.uint8)
    kit = Composer(sprite, (SIDE, SIDE), GRID, CPU, entries=2)
    for mirror, expected in ((1.0, [0, 2]), (-1.0, [2, 0])):
        scene = compose_of([(0, 0.5, 0.5, 0.4, 0.0, mirror)], monkeypatch, kit=kit)
        row = shows(scene.pixels)[0, SIDE // 2]
        assert row[[int(0.4 * SIDE), int(0.6 * SIDE)]].tolist() == expected


@pytest.mark.long
def test_boxes_bound_the_painted_pixels_of_random_scenes(clean):
    kit = composer()
    torch.manual_seed(0)  # the same scenes whether this test made the composer or another one did
    scenes = kit(28, FULL)
    painted = shows(scenes.pixels)
    checked = 0
    for colours, labels, boxes in zip(painted, scenes.labels, scenes.boxes, strict=True):
        for kind in range(3):
            mine = [corners(box) for box in boxes[labels == kind]]
            if not mine:
                continue
            rows, columns = ((colours == kind).any(axis).nonzero().flatten() / SIDE for axis in (1, 0))
            low_x, low_y, high_x, high_y = zip(*mine, strict=True)
            bound = (columns.min(), rows.min(), columns.max() + 1 / SIDE, rows.max() + 1 / SIDE)
            # Soft edges mix colours: the outermost pixel is not clearly of one.
            assert [float(side) for side in bound] == pytest.approx(
                [min(low_x), min(low_y), max(high_x), max(high_y)], abs=2.5 / SIDE
            )
            checked += 1
    assert checked > 30
    assert bool(((scenes.labels >= 0) == (scenes.boxes[..., 2] > 0)).all())


def test_scenes_are_images_with_one_to_ten_objects(monkeypatch):
    monkeypatch.setattr(layouts, "_EMPTY", 0.0)
    scenes = composer()(12, FULL)
    assert scenes.pixels.shape == (12, SIDE, SIDE, 3)
    assert scenes.pixels.dtype == torch.uint8
    count = (scenes.labels >= 0).sum(1)
    assert int(count.min()) >= 1
    assert int(count.max()) > 3
    low, high = scenes.boxes[..., :2] - scenes.boxes[..., 2:] / 2, scenes.boxes[..., :2] + scenes.boxes[..., 2:] / 2
    assert float(low.min()) >= 0
    assert float(high.max()) <= 1


@pytest.mark.long
def test_the_seed_decides():
    compose = composer()  # painting its backgrounds draws numbers, too

    def drawn(seed):
        torch.manual_seed(seed)
        return compose(3, FULL)

    assert torch.equal(drawn(5).pixels, drawn(5).pixels)
    assert torch.equal(drawn(5).boxes, drawn(5).boxes)
    assert not torch.equal(drawn(5).pixels, drawn(6).pixels)


def test_patches_name_the_object_at_their_centre(clean):
    scenes = composer()(11, FULL)
    centres = shows(scenes.pixels)[:, PATCH // 2 :: PATCH, PATCH // 2 :: PATCH].flatten(1)
    said = scenes.patches.labels
    assert said.shape == (11, (SIDE // PATCH) ** 2)
    assert set(said.unique().tolist()) == {0, 1, 2, 3}
    clear = (centres >= 0) & (said < 3)
    assert int(clear.sum()) > 50
    assert bool((centres == said)[clear].all())
    for b, p in ((said < 3).nonzero()).tolist():
        owners = (scenes.boxes[b] == scenes.patches.boxes[b, p]).all(-1)
        assert said[b, p] in scenes.labels[b][owners]


def test_dense_targets_of_a_scene(steady, monkeypatch):
    # The square covers the centres of patches 3 to 6 of ten on either axis; the dot lies between four centres.
    scene = compose_of([(1, 0.52, 0.52, 0.4, 0.0, 1.0), (2, 0.81, 0.21, 0.05, 0.0, 1.0)], monkeypatch)
    expected = torch.full((10, 10), 3)
    expected[3:7, 3:7] = 1
    expected[2, 8] = 2
    assert torch.equal(scene.patches.labels.reshape(10, 10), expected)
    boxes = scene.patches.boxes.reshape(10, 10, 4)
    assert torch.equal(boxes[3:7, 3:7], scene.boxes[0, 0].expand(4, 4, 4))
    assert torch.equal(boxes[2, 8], scene.boxes[0, 1])
    points = scene.patches.points.reshape(10, 10, 2)
    assert torch.equal(points[3:7, 3:7], scene.points[0, 0].expand(4, 4, 2))
    assert torch.equal(points[2, 8], scene.points[0, 1])
    assert scene.patches.centres.reshape(10, 10).nonzero().tolist() == [[2, 8], [5, 5]]
    assert torch.equal(scene.patches.numbers.reshape(10, 10), (expected < 3).long())


def test_patches_tell_how_many_there_are_of_their_kind():
    scenes = composer()(11, FULL)
    said, numbers = scenes.patches.labels, scenes.patches.numbers
    there = (scenes.labels[:, None] == said[..., None]).sum(2)
    assert int((there > 1).sum()) > 50
    assert torch.equal(numbers, there)


def test_patches_tell_the_outline_of_their_object(steady, monkeypatch):
    scene = compose_of([(1, 0.5, 0.5, 0.4, 0.3, -1.0), (2, 0.81, 0.21, 0.05, 0.2, 1.0)], monkeypatch)
    told, labels = scene.patches.outlines[0].unflatten(1, (TOLD, 2)), scene.patches.labels[0]
    for place, kind in enumerate((1, 2)):
        count = min(TOLD, int(scene.vertices[0, place]))
        shown = told[labels == kind]
        assert len(shown)
        assert count >= LEAST
        assert torch.equal(shown[:, :count], scene.outlines[0, place, :count].expand(len(shown), -1, -1))
        assert bool((shown[:, count:] == -1).all())


def test_sprites_of_another_size_are_refused():
    with pytest.raises(ValueError, match="64 pixels"):
        Composer(squares(GREEN)[:, ::2, ::2], (SIDE, SIDE), GRID, CPU)


def place(scene, point):
    """Which of the primary colours the pixel at a point is."""
    height, width = scene.pixels.shape[1:3]
    return int(shows(scene.pixels)[0, int(point[1] * height), int(point[0] * width)])


@pytest.mark.parametrize("made", [True, False])
def test_a_rectangular_canvas_holds_the_whole_image(steady, monkeypatch, made):
    kit = composer((160, 256)) if made else composer((256, 256)).resized((160, 256))
    scene = compose_of([(1, 0.8, 0.4, 0.3, 0.0, 1.0)], monkeypatch, width=1.6, kit=kit)
    assert scene.pixels.shape == (1, 160, 256, 3)
    half = 0.15 * VISIBLE
    expected = ((0.8 - half) / 1.6, 0.4 - half, (0.8 + half) / 1.6, 0.4 + half)
    assert corners(scene.boxes[0, 0]) == pytest.approx(expected, abs=1.5 / 160)
    assert scene.patches.labels.shape == (1, GRID**2)
    assert scene.patches.labels.reshape(GRID, GRID)[4, 5] == 1


def test_a_point_is_where_the_object_can_be_seen(steady, monkeypatch):
    # The second covers the centre of the first, not its left edge.
    scene = compose_of([(0, 0.5, 0.5, 0.4, 0.0, 1.0), (1, 0.6, 0.5, 0.42, 0.0, 1.0)], monkeypatch)
    assert torch.equal(scene.points[0, 0], scene.boxes[0, 0, :2])
    big, small = (0, 0.5, 0.5, 0.45, 0.0, 1.0), (1, 0.5, 0.5, 0.15, 0.0, 1.0)
    scene = compose_of([big, small], monkeypatch)
    assert place(scene, scene.boxes[0, 0, :2]) == 1
    assert place(scene, scene.points[0, 0]) == 0
    # The ring around it is 0.15 wide: its middle, up and to the left as all sides are as near.
    x, y = (scene.points - scene.boxes[..., :2])[0, 0].tolist()
    assert min(x, y) < 0
    assert 0.075 + 0.6 * 0.075 - 0.03 <= max(abs(x), abs(y)) <= 0.15


def test_a_point_keeps_away_from_the_edge(steady, monkeypatch):
    # What is left of the first is an L: its centre is on it, but hardly.
    items = [(0, 0.5, 0.5, 0.4, 0.0, 1.0), (1, 0.61, 0.39, 0.2, 0.0, 1.0)]
    scene = compose_of(items, monkeypatch)
    assert place(scene, scene.boxes[0, 0, :2]) == 0
    for dx, dy in ((0.03, -0.03), (-0.03, 0.03), (0.03, 0.03), (-0.03, -0.03)):
        assert place(scene, scene.points[0, 0] + torch.tensor([dx, dy])) == 0


@pytest.mark.long
def test_points_spots_and_free_places_lie_on_their_objects(clean):
    scenes = composer()(16, FULL)
    painted = shows(scenes.pixels)
    for b, n in (scenes.labels >= 0).nonzero().tolist():
        for where in (scenes.points, scenes.spots):
            column, row = (where[b, n] * SIDE).long().tolist()
            around = painted[b, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2]
            assert bool((around == scenes.labels[b, n]).any())
    assert bool(scenes.free_ok.all())
    rows, columns = (scenes.free[:, 1] * SIDE).long(), (scenes.free[:, 0] * SIDE).long()
    assert int(scenes.pixels[torch.arange(16), rows, columns].max()) < 130
    absent = scenes.labels < 0
    assert not scenes.points[absent].any()
    assert not scenes.vertices[absent].any()
    assert not scenes.outlines[absent].any()


def letter():
    """A sprite of yellow, which is no class."""
    return squares((255, 255, 0))


def test_a_distractor_covers_objects_and_is_no_part_of_the_truth(steady, monkeypatch):
    kit = Composer(squares(RED), (SIDE, SIDE), GRID, CPU, distractors=letter(), entries=1)
    thing, word = (0, 0.4, 0.5, 0.4, 0.0, 1.0), (1, 0.56, 0.5, 0.5, 0.0, 1.0)
    scene = compose_of([thing, word], monkeypatch, kit=kit)
    assert scene.labels[0].tolist() == [0, *[-1] * (MOST - 1)]
    assert float(scene.boxes[0, 0, 2]) < 0.2
    assert scene.pixels[0, SIDE // 2, int(0.56 * SIDE)].tolist() == [255, 255, 0]
    assert set(scene.patches.labels.unique().tolist()) == {0, 1}
    assert int((scene.patches.labels == 0).sum()) < 20  # the class of the background is 1
    assert not scene.boxes[0, 1:].any()


def test_a_distractor_is_a_free_place(steady, monkeypatch):
    for sprites, distractors, free in ((squares(RED), letter(), True), (squares(RED, BLUE), None, False)):
        kit = Composer(sprites, (SIDE, SIDE), GRID, CPU, distractors=distractors, entries=1)
        scene = compose_of([(1, 0.5, 0.5, 1.4, 0.0, 1.0)], monkeypatch, kit=kit)
        assert scene.free_ok.tolist() == [free]


def test_what_is_nearly_covered_is_not_asked_for(steady, monkeypatch):
    # Of the first a strip stays visible: 16 % of it, or 3 %, which is still some hundred pixels.
    for shift, label in ((0.08, 0), (0.015, -1)):
        items = [(0, 0.5 - shift, 0.5, 0.5, 0.0, 1.0), (1, 0.5, 0.5, 0.5, 0.0, 1.0)]
        scene = compose_of(items, monkeypatch)
        assert int((shows(scene.pixels) == 0).sum()) > 100
        assert scene.labels[0, 0] == label


def test_there_is_no_free_place_where_objects_fill_the_image(steady, monkeypatch):
    scene = compose_of([(0, 0.5, 0.5, 1.4, 0.0, 1.0)], monkeypatch)
    assert scene.free_ok.tolist() == [False]


@cache
def arrow_composer():
    """One sprite that is no mirror image of itself: an L."""
    sprite = torch.zeros(1, 128, 128, 4, dtype=torch.uint8)
    sprite[0, 1:-1, 1:50] = torch.tensor([255, 0, 0, 255], dtype=torch.uint8)
    sprite[0, 80:-1, 1:-1] = torch.tensor([255, 0, 0, 255], dtype=torch.uint8)
    return Composer(sprite, (SIDE, SIDE), GRID, CPU, entries=1)


@pytest.mark.parametrize("mirror", [1.0, -1.0])
@pytest.mark.parametrize("degrees", [0, 20, -25])
@pytest.mark.parametrize("shear", [0.0, 0.14])
def test_an_outline_follows_its_object(steady, monkeypatch, mirror, degrees, shear):
    kit = arrow_composer()
    item = (0, 0.5, 0.5, 0.6, math.radians(degrees), mirror)
    scene = compose_of([item], monkeypatch, width=1.5, kit=kit, shear=shear)
    count = int(scene.vertices[0, 0])
    assert 8 <= count <= 32
    assert not scene.outlines[0, 0, count:].any()
    line = scene.outlines[0, 0, :count].double()
    x, y, w, h = scene.boxes[0, 0].double().tolist()
    points = torch.stack((x - w / 2 + line[:, 0] * w, y - h / 2 + line[:, 1] * h), 1) * SIDE
    drawn = rasterise(points.numpy(), SIDE)
    assert iou(drawn, (shows(scene.pixels)[0] == 0).numpy()) > 0.9
    ahead = points.roll(-1, 0)
    assert float((points[:, 0] * ahead[:, 1] - points[:, 1] * ahead[:, 0]).sum()) > 0  # clockwise, y downwards


def in_image(scene):
    """The first object's outline in fractions of the image."""
    middle, size = scene.boxes[0, 0].split(2)
    return middle + (scene.outlines[0, 0, : int(scene.vertices[0, 0])] - 0.5) * size


@pytest.mark.parametrize("mirror", [1.0, -1.0])
@pytest.mark.parametrize("degrees", [20, -25])
def test_an_outline_begins_where_it_would_if_its_object_stood_upright(steady, monkeypatch, mirror, degrees):
    kit = arrow_composer()
    angle = math.radians(degrees)
    upright, turned = (
        in_image(compose_of([(0, 0.5, 0.5, 0.6, turn, mirror)], monkeypatch, kit=kit)) - 0.5 for turn in (0.0, angle)
    )
    top = upright[upright[:, 1] <= float(upright[:, 1].min()) + 0.01]
    assert torch.equal(upright[0], top[top[:, 0].argmin()])
    turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    assert torch.allclose(turned, upright @ turn, atol=0.02)


def test_ears_that_differ_a_little_are_equally_high(steady, monkeypatch):
    sprite = squares(RED)
    sprite[0, :24] = 0
    sprite[0, 21:24, 20:30] = sprite[0, 20:24, 98:108] = sprite[0, 64, 64]
    kit = Composer(sprite, (SIDE, SIDE), GRID, CPU, entries=1)
    for mirror in (1.0, -1.0):
        line = in_image(compose_of([(0, 0.5, 0.5, 0.6, 0.0, mirror)], monkeypatch, kit=kit))
        assert float(line[0, 0]) < 0.45


def test_of_equally_high_vertices_the_leftmost_comes_first(steady, monkeypatch):
    scene = compose_of([(0, 0.5, 0.5, 0.4, 0.0, 1.0)], monkeypatch)
    line = scene.outlines[0, 0, : int(scene.vertices[0, 0])]
    top = line[line[:, 1] <= float(line[:, 1].min()) + 1e-4]
    assert torch.equal(line[0], top[top[:, 0].argmin()])


def test_outlines_may_be_computed_beforehand():
    sprites = squares(RED)
    vertices, counts = outlines(sprites.numpy())
    kit = Composer(sprites, (SIDE, SIDE), GRID, CPU, outline=(vertices + 1, counts), entries=1)
    assert torch.equal(kit.outlines, vertices + 1)


def test_kinds_named_by_a_colour_keep_their_hue():
    steady = dict(zip((item.name for item in load_objects()), steady_hues(load_objects()).tolist(), strict=True))
    assert steady["red apple"]
    assert not steady["banana"]
    assert steady["tangerine"]  # also called orange


def test_a_canvas_larger_than_the_backgrounds_is_refused():
    with pytest.raises(ValueError, match="larger than the backgrounds, 200"):
        composer().resized((160, 256))


@pytest.mark.parametrize("degrees", [0, 25, -25])
def test_shear_moves_what_is_low_to_the_right_before_the_turn(steady, monkeypatch, degrees):
    angle, half = math.radians(degrees), 0.2 * VISIBLE
    scene = compose_of([(0, 0.5, 0.5, 0.4, angle, 1.0)], monkeypatch, shear=0.14)
    cos, sin = math.cos(angle), math.sin(angle)
    ends = [(half * (a + 0.14 * b), half * b) for a in (-1, 1) for b in (-1, 1)]
    wide = 2 * max(a * cos - b * sin for a, b in ends)
    tall = 2 * max(a * sin + b * cos for a, b in ends)
    assert scene.boxes[0, 0, 2:].tolist() == pytest.approx([wide, tall], abs=4 / SIDE)
