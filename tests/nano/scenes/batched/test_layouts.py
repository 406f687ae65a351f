import itertools
import math

import pytest
import torch

from bench.nano.scenes.batched import layouts
from bench.nano.scenes.batched.layouts import (
    MAX_ANGLE,
    MAX_KINDS,
    MAX_OBJECTS,
    MAX_SIZE,
    MIN_SIZE,
    Difficulty,
    LayoutMaker,
)
from tests.tiny import CPU

CLASSES, DISTRACTORS = 260, 40
VISIBLE = 126 / 128  # of a sprite
FULL = Difficulty().tensor(CPU)


def maker(most=MAX_OBJECTS, distractors=0, size=(160, 160)):
    return LayoutMaker(torch.full((CLASSES + distractors, 2), VISIBLE), CLASSES, size, most)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def style(monkeypatch):
    """Makes all layouts rows, grids, piles, or free."""

    def choose(name):
        shares = {"rows": (1, 1, 1), "grid": (0, 1, 1), "pile": (0, 0, 1), "free": (0, 0, 0)}[name]
        for constant, share in zip(("_ROWS", "_GRID", "_PILE"), shares, strict=True):
            monkeypatch.setattr(layouts, constant, share)

    return choose


def boxes_of(layout):
    """Half sides and centres of the boxes of whole objects that are not sheared, in units of the short side."""
    wide = VISIBLE * (1 + layout.shear.abs())
    cos, sin = layout.angle.cos().abs(), layout.angle.sin().abs()
    half = torch.stack((cos * wide + sin * VISIBLE, sin * wide + cos * VISIBLE), -1) * layout.size[..., None] / 2
    return half, torch.stack((layout.x, layout.y), -1)


def overlaps(layout):
    """The largest share of the smaller of two boxes of a scene that the other one covers, [B]."""
    half, centre = boxes_of(layout)
    there, most = layout.label >= 0, torch.zeros(len(half))
    for i, j in itertools.combinations(range(layout.label.shape[1]), 2):
        low = torch.maximum(centre[:, i] - half[:, i], centre[:, j] - half[:, j])
        high = torch.minimum(centre[:, i] + half[:, i], centre[:, j] + half[:, j])
        smaller = 4 * torch.minimum(half[:, i].prod(-1), half[:, j].prod(-1))
        share = (high - low).clamp(min=0).prod(-1) / smaller
        most = torch.maximum(most, torch.where(there[:, i] & there[:, j], share, 0.0))
    return most


@pytest.mark.parametrize(("name", "limit"), [("free", 0.5), ("rows", 0.5), ("grid", 0.5), ("pile", 0.6)])
def test_objects_overlap_a_little_and_stay_inside(style, name, limit):
    style(name)
    layout = maker(20)(60, FULL)
    half, centre = boxes_of(layout)
    frame = torch.stack((layout.width, layout.height), -1)
    there = layout.label >= 0
    assert bool(((centre - half >= -1e-4) & (centre + half <= frame + 1e-4))[there].all())
    most = overlaps(layout)
    assert float(most.max()) <= limit + 1e-3
    assert float(most.max()) > 0.1


def test_later_objects_together_leave_some_of_each(style, monkeypatch):
    style("pile")
    layout = maker(30)(40, FULL)
    half, centre = boxes_of(layout)
    there = layout.label >= 0
    for n in range(29):
        low = torch.maximum((centre - half)[:, n, None], (centre - half)[:, n + 1 :])
        high = torch.minimum((centre + half)[:, n, None], (centre + half)[:, n + 1 :])
        hidden = ((high - low).clamp(min=0).prod(-1) * there[:, n + 1 :]).sum(1) / (4 * half[:, n].prod(-1))
        assert float((hidden * there[:, n]).max()) <= 0.6 + 0.1 + 1e-3


def test_layouts_fill_the_domain():
    layout = maker()(400, FULL)
    there = layout.label >= 0
    size, angle = layout.size[there], layout.angle[there]
    assert MIN_SIZE - 1e-6 <= float(size.min()) < 0.05
    assert 0.7 < float(size.max()) <= MAX_SIZE + 1e-6
    assert float((size < 0.08).float().mean()) > 0.15
    assert float((size > 0.32).float().mean()) > 0.01
    aspect = layout.width / layout.height
    assert 0.5 <= float(aspect.min()) < 0.6
    assert 1.8 < float(aspect.max()) <= 2
    assert torch.equal(torch.minimum(layout.width, layout.height), torch.ones(400, 1))
    assert set(layout.mirror.unique().tolist()) == {-1.0, 1.0}
    assert float(angle.abs().max()) > 3


def test_two_scenes_in_five_turn_objects_by_any_angle():
    far = (maker(10)(1000, FULL).angle.abs() > MAX_ANGLE + 1e-6).any(1).float().mean()
    assert 0.34 < float(far) < 0.43  # of the half that may, some turn nothing


def test_half_of_the_scenes_are_crowds():
    count = (maker()(600, FULL).label >= 0).sum(1)
    few, some, many = (
        float(((count > low) & (count <= high)).float().mean()) for low, high in ((0, 10), (10, 25), (25, 50))
    )
    assert 0.4 < few < 0.58
    assert 0.15 < some < 0.32
    assert 0.15 < many < 0.32
    assert int(count.max()) > 45


def test_a_scene_has_few_kinds_and_crowds_of_one():
    label = maker()(400, FULL).label
    kinds = torch.tensor([len(row[row >= 0].unique()) for row in label])
    assert int(kinds.max()) == MAX_KINDS
    largest = torch.tensor([int(torch.bincount(row[row >= 0], minlength=1).max()) for row in label])
    assert float((largest > 10).float().mean()) > 0.15
    assert int(largest.max()) > 35
    count = (label >= 0).sum(1)
    few = (count > 1) & (count <= 10)
    assert 0.3 < float((kinds < count)[few].float().mean()) < 0.7


def test_distractors_are_no_kinds_and_lie_anywhere_among_the_objects():
    layout = maker(20, DISTRACTORS)(500, FULL)
    distractor = layout.label >= CLASSES
    assert 0.3 < float(distractor.any(1).float().mean()) < 0.5
    assert int(distractor.sum(1).max()) <= 5
    assert int(layout.label.max()) < CLASSES + DISTRACTORS
    later = (layout.label >= 0) & (layout.label < CLASSES)
    under = (distractor & (later.flip(1).cumsum(1).flip(1) > 0)).sum()
    assert 0 < int(under) < int(distractor.sum())
    assert bool((layout.mirror[distractor] == 1).all())


@pytest.mark.parametrize("difficulty", [Difficulty(2, 0.4), Difficulty(5, 0.2), Difficulty(20, 0.1)])
def test_difficulty_is_respected(style, difficulty):
    style("free")
    layout = maker()(300, difficulty.tensor(CPU))
    there = layout.label >= 0
    assert int(there.sum(1).max()) == difficulty.max_count
    assert float(layout.size[there].min()) >= difficulty.min_size - 1e-6


def test_some_scenes_hold_nothing_or_one_object():
    count = maker()._count(4000, torch.tensor(50.0))
    empty, alone = (float((count == number).float().mean()) for number in (0, 1))
    assert 0.16 < empty < 0.20
    assert 0.07 < alone < 0.12


def test_the_curriculum_goes_from_few_and_large_to_everything():
    start, middle, ramped, end = (Difficulty.at(progress) for progress in (0.0, 0.175, 0.35, 1.0))
    assert (start.max_count, start.min_size) == (3, pytest.approx(0.3))
    assert start.max_count < middle.max_count < MAX_OBJECTS
    assert start.min_size > middle.min_size > MIN_SIZE
    assert ramped == end
    assert (end.max_count, end.min_size) == (MAX_OBJECTS, pytest.approx(MIN_SIZE))


def test_grids_have_columns_and_rows_have_lines(style, monkeypatch):
    monkeypatch.setattr(layouts, "uniform", lambda shape, low, high, device: torch.full(shape, (low + high) / 2))
    for name in ("grid", "rows"):
        style(name)
        layout = maker()(100, FULL)
        for label, x, y in zip(layout.label, layout.x, layout.y, strict=True):
            columns, rows = (len(set(place[label >= 0].mul(200).round().tolist())) for place in (x, y))
            count = int((label >= 0).sum())
            if name == "grid" and count > 4:
                assert max(columns, rows) < count
            if name == "rows" and count <= 18:
                assert rows <= max(3, count)


def distances(layout):
    """Between all pairs of objects, [pairs]."""
    centre, there = torch.stack((layout.x, layout.y), -1), layout.label >= 0
    apart = (centre[:, :, None] - centre[:, None]).norm(dim=-1)
    pair = (there[:, :, None] & there[:, None]).float().triu(1) > 0
    return apart[pair]


def test_piles_are_closer_than_what_lies_anywhere(style):
    style("free")
    free = distances(maker(20)(600, FULL)).mean()
    style("pile")
    assert float(distances(maker(20)(600, FULL)).mean()) < 0.95 * float(free)


def test_some_free_scenes_have_objects_that_touch(style, monkeypatch):
    style("free")
    few = Difficulty(max_count=3).tensor(CPU)

    def touching(share):
        monkeypatch.setattr(layouts, "_CROWDED", share)
        return float((overlaps(maker(3)(400, few)) > 0).float().mean())

    assert touching(1.0) > 1.5 * touching(0.0)


def test_layouts_follow_the_aspect_of_the_canvas():
    layout = maker(2, size=(160, 256))(200, FULL)
    aspect = layout.width / layout.height
    assert 2 ** (math.log2(1.6) - 0.5) - 1e-3 <= float(aspect.min()) < float(aspect.max()) <= 2


def test_small_scenes_often_repeat_a_kind_among_many():
    label = maker(10)(3000, FULL).label
    count = (label >= 0).sum(1)
    kinds = torch.tensor([len(row[row >= 0].unique()) for row in label])
    repeated = (kinds < count) & (kinds >= 5)
    assert float(repeated[count >= 6].float().mean()) > 0.12
