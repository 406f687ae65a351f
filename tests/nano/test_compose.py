import itertools
import math

import pytest
import torch

from bench.nano import compose
from bench.nano.compose import MAX_ANGLE, MAX_OBJECTS, MAX_OVERLAP, MAX_SIZE, MIN_SIZE, Composer, Difficulty, Layout
from tests.nano.small import BLUE, FULL, GREEN, PATCH, RED, SIDE, composer, squares
from tests.tiny import CPU

VISIBLE = 126 / 128  # of a sprite of `squares`


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def clean(monkeypatch):
    """Objects on black, and nothing done to the picture afterwards."""
    monkeypatch.setattr(compose, "backgrounds", lambda batch, size, device: torch.zeros(batch, 3, size, size))
    monkeypatch.setattr(compose, "degrade", lambda images: images)


@pytest.fixture
def steady(clean, monkeypatch):
    """What is drawn between two bounds lies in their middle: objects are neither stretched nor tinted."""
    monkeypatch.setattr(
        compose, "uniform", lambda shape, low, high, device: torch.full(shape, (low + high) / 2, device=device)
    )


def compose_of(items, monkeypatch, width=1.0, height=1.0, kit=None):
    """Compose one scene of (label, x, y, size, angle, mirror), in units of the short side, in the order of painting."""
    kit = kit or composer()
    rows = [*items, *[(-1, 0.0, 0.0, 0.1, 0.0, 1.0)] * (MAX_OBJECTS - len(items))]
    label, *numbers = (torch.tensor([values]) for values in zip(*rows, strict=True))
    layout = Layout(label, *numbers, torch.tensor([[width]]), torch.tensor([[height]]))
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
def test_a_box_is_measured_in_the_picture_squeezed_into_a_square(steady, monkeypatch, width, height, degrees):
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
    assert not (scene.patch_labels == 0).any()


def test_a_sliver_is_not_asked_for(steady, monkeypatch):
    # One column of 6 pixels is left of the first: fewer than anybody would call visible.
    scene = compose_of([(0, 0.493, 0.5, 0.04, 0.0, 1.0), (1, 0.5, 0.5, 0.04, 0.0, 1.0)], monkeypatch)
    assert int((shows(scene.pixels) == 0).sum()) > 0
    assert scene.labels[0, :2].tolist() == [-1, 1]
    assert not (scene.patch_labels == 0).any()


def test_a_sliver_at_the_centre_of_a_patch_is_background(steady, monkeypatch):
    # Its only column is the 89th, where the centres of patches are.
    scene = compose_of([(0, 0.571, 0.553, 0.04, 0.0, 1.0), (1, 0.578, 0.553, 0.04, 0.0, 1.0)], monkeypatch)
    assert shows(scene.pixels)[0, 88, 88] == 0
    assert scene.labels[0, 0] == -1
    assert scene.patch_labels.reshape(10, 10)[5, 5] == 3
    assert int(scene.patch_labels.min()) >= 0


def test_mirroring_swaps_left_and_right(steady, monkeypatch):
    sprite = squares(RED)
    sprite[:, :, 64:127, :3] = torch.tensor(BLUE, dtype=torch.uint8)
    kit = Composer(sprite, SIDE, PATCH, CPU)
    for mirror, expected in ((1.0, [0, 2]), (-1.0, [2, 0])):
        scene = compose_of([(0, 0.5, 0.5, 0.4, 0.0, mirror)], monkeypatch, kit=kit)
        row = shows(scene.pixels)[0, SIDE // 2]
        assert row[[int(0.4 * SIDE), int(0.6 * SIDE)]].tolist() == expected


def test_boxes_bound_the_painted_pixels_of_random_scenes(clean):
    scenes = composer()(22, FULL)
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


def test_scenes_are_pictures_with_one_to_ten_objects():
    scenes = composer()(12, FULL)
    assert scenes.pixels.shape == (12, SIDE, SIDE, 3)
    assert scenes.pixels.dtype == torch.uint8
    count = (scenes.labels >= 0).sum(1)
    assert int(count.min()) >= 1
    assert int(count.max()) > 3
    low, high = scenes.boxes[..., :2] - scenes.boxes[..., 2:] / 2, scenes.boxes[..., :2] + scenes.boxes[..., 2:] / 2
    assert float(low.min()) >= 0
    assert float(high.max()) <= 1


def test_the_seed_decides():
    def drawn(seed):
        torch.manual_seed(seed)
        return composer()(3, FULL)

    assert torch.equal(drawn(5).pixels, drawn(5).pixels)
    assert torch.equal(drawn(5).boxes, drawn(5).boxes)
    assert not torch.equal(drawn(5).pixels, drawn(6).pixels)


def bounds_before_occlusion(layout):
    """Half sides of the boxes of whole objects, in units of the short side, as (x, y): ``[B, N, 2]``."""
    half = layout.size * VISIBLE / 2 * (layout.angle.cos() + layout.angle.sin().abs())
    return half[..., None].expand(-1, -1, 2)


def test_objects_overlap_a_little_and_stay_inside():
    layout = composer()._layout(200, FULL)
    half, centre = bounds_before_occlusion(layout), torch.stack((layout.x, layout.y), -1)
    there = layout.label >= 0
    frame = torch.stack((layout.width, layout.height), -1)
    assert bool(((centre - half >= -1e-5) & (centre + half <= frame + 1e-5))[there].all())
    most = 0.0
    for i, j in itertools.combinations(range(MAX_OBJECTS), 2):
        low = torch.maximum(centre[:, i] - half[:, i], centre[:, j] - half[:, j])
        high = torch.minimum(centre[:, i] + half[:, i], centre[:, j] + half[:, j])
        smaller = (4 * torch.minimum(half[:, i], half[:, j]).square())[:, 0]
        share = ((high - low).clamp(min=0).prod(-1) / smaller)[there[:, i] & there[:, j]]
        assert float(share.max()) <= MAX_OVERLAP + 1e-4
        most = max(most, float(share.max()))
    assert most > 0.2


def test_layouts_fill_the_domain():
    layout = composer()._layout(400, FULL)
    there = layout.label >= 0
    size, angle = layout.size[there], layout.angle[there]
    assert MIN_SIZE <= float(size.min()) < 0.1
    assert 0.44 < float(size.max()) <= MAX_SIZE + 1e-6
    assert math.radians(24) < float(angle.abs().max()) <= MAX_ANGLE
    aspect = layout.width / layout.height
    assert 0.5 <= float(aspect.min()) < 0.6
    assert 1.8 < float(aspect.max()) <= 2
    assert torch.equal(torch.minimum(layout.width, layout.height), torch.ones(400, 1))
    assert set(layout.mirror.unique().tolist()) == {-1.0, 1.0}
    count = there.sum(1)
    assert {1, 2, 3, 4, 5, 6, 7} <= set(count.tolist())
    assert set(layout.label[there].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("difficulty", [Difficulty(2, 0.4), Difficulty(5, 0.2)])
def test_difficulty_is_respected(difficulty):
    layout = composer()._layout(200, difficulty.tensor(CPU))
    there = layout.label >= 0
    assert set(there.sum(1).tolist()) <= set(range(1, difficulty.max_count + 1))
    assert int(there.sum(1).max()) == difficulty.max_count
    assert float(layout.size[there].min()) >= difficulty.min_size - 1e-6


def test_the_curriculum_goes_from_few_and_large_to_everything():
    start, middle, ramped, end = (Difficulty.at(progress) for progress in (0.0, 0.175, 0.35, 1.0))
    assert (start.max_count, start.min_size) == (3, pytest.approx(0.3))
    assert start.max_count < middle.max_count < MAX_OBJECTS
    assert start.min_size > middle.min_size > MIN_SIZE
    assert ramped == end
    assert (end.max_count, end.min_size) == (MAX_OBJECTS, pytest.approx(MIN_SIZE))


def test_about_half_of_the_scenes_repeat_a_kind(monkeypatch):
    monkeypatch.setattr(composer(), "classes", 5000)
    labels = composer()._labels(400)
    repeated = torch.tensor([len(row.unique()) < MAX_OBJECTS for row in labels]).float().mean()
    assert 0.4 < float(repeated) < 0.6


def test_patches_name_the_object_at_their_centre(clean):
    scenes = composer()(11, FULL)
    centres = shows(scenes.pixels)[:, PATCH // 2 :: PATCH, PATCH // 2 :: PATCH].flatten(1)
    said = scenes.patch_labels
    assert said.shape == (11, (SIDE // PATCH) ** 2)
    assert set(said.unique().tolist()) == {0, 1, 2, 3}
    clear = (centres >= 0) & (said < 3)
    assert int(clear.sum()) > 50
    assert bool((centres == said)[clear].all())
    for b, p in ((said < 3).nonzero()).tolist():
        owners = (scenes.boxes[b] == scenes.patch_boxes[b, p]).all(-1)
        assert said[b, p] in scenes.labels[b][owners]


def test_dense_targets_of_a_scene(steady, monkeypatch):
    # The square covers the centres of patches 3 to 6 of ten on either axis; the dot lies between four centres.
    scene = compose_of([(1, 0.5, 0.5, 0.4, 0.0, 1.0), (2, 0.81, 0.21, 0.05, 0.0, 1.0)], monkeypatch)
    expected = torch.full((10, 10), 3)
    expected[3:7, 3:7] = 1
    expected[2, 8] = 2
    assert torch.equal(scene.patch_labels.reshape(10, 10), expected)
    boxes = scene.patch_boxes.reshape(10, 10, 4)
    assert torch.equal(boxes[3:7, 3:7], scene.boxes[0, 0].expand(4, 4, 4))
    assert torch.equal(boxes[2, 8], scene.boxes[0, 1])


def test_sprites_of_another_size_are_refused():
    with pytest.raises(ValueError, match="64 pixels"):
        Composer(squares(GREEN)[:, ::2, ::2], SIDE, PATCH, CPU)
