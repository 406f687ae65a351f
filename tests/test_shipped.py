"""The checkpoint that comes with the package, on the pictures that come with it."""

import json
from pathlib import Path

import pytest

import photonlite
from bench.nano.scoring import iou

ASSETS = Path(__file__).parents[1] / "assets"
STILLS = json.loads((ASSETS / "stills.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model():
    with photonlite.load(device="cpu") as loaded:
        yield loaded


def truth(still, name):
    return [entry["box"] for entry in STILLS[still] if entry["name"] == name]


def corners(entry):
    return entry["x_min"], entry["y_min"], entry["x_max"], entry["y_max"]


def test_demo_finds_both_bananas_and_nothing_else(model):
    found = model.detect(ASSETS / "desk.png", "banana")["objects"]

    boxes = truth("desk", "banana")
    assert len(found) == len(boxes) == 2
    assert all(max(iou(corners(entry), box) for entry in found) > 0.7 for box in boxes)


@pytest.mark.parametrize("still", sorted(STILLS))
def test_most_things_in_the_stills_are_found_where_they_are(model, still):
    picture = model.encode_image(ASSETS / f"{still}.png")
    matched = asked = answered = 0
    for name in {entry["name"] for entry in STILLS[still]}:
        found, boxes = model.detect(picture, name)["objects"], truth(still, name)
        matched += sum(any(iou(corners(entry), box) >= 0.5 for entry in found) for box in boxes)
        asked, answered = asked + len(boxes), answered + len(found)

    assert matched >= 0.8 * asked
    assert matched >= 0.8 * answered


@pytest.mark.parametrize("absent", ["giraffe", "toothbrush", "a helicopter", "Pandas"])
def test_absent_things_are_answered_with_none(model, absent):
    assert model.detect(ASSETS / "desk.png", absent) == {"objects": []}
    assert model.point(ASSETS / "desk.png", absent) == {"points": []}


def test_a_point_lies_in_the_thing(model):
    [point] = model.point(ASSETS / "desk.png", "laptop")["points"]
    [(x_min, y_min, x_max, y_max)] = truth("desk", "laptop")
    assert x_min < point["x"] < x_max
    assert y_min < point["y"] < y_max


def test_questions_are_answered(model):
    picture = model.encode_image(ASSETS / "desk.png")
    assert model.query(picture, "How many bananas are there?")["answer"] == "2"
    assert model.query(picture, "Is there a laptop?")["answer"] == "Yes"
    assert model.query(picture, "Is there a dog?")["answer"] == "No"


def test_caption_says_what_there_is(model):
    text = model.caption(ASSETS / "desk.png", length="short")["caption"]
    assert sum(word in text for word in ("laptop", "clock", "camera", "cup", "red apple", "banana")) >= 4


def test_words_may_be_capital_plural_or_a_synonym(model):
    picture = model.encode_image(ASSETS / "desk.png")
    plain = [corners(entry) for entry in model.detect(picture, "cup")["objects"]]
    assert len(plain) == 1
    for words in ("CUP", "the cups", "a mug"):
        [found] = model.detect(picture, words)["objects"]
        assert iou(corners(found), plain[0]) > 0.8


def test_the_outline_of_a_thing_lies_in_its_box(model):
    [outline] = model.segment(ASSETS / "desk.png", "camera")["segments"]
    [box] = truth("desk", "camera")
    assert iou(corners(outline["bbox"]), box) > 0.7
    assert len(outline["polygon"]) >= 8
    assert model.segment(ASSETS / "desk.png", "octopus") == {"segments": []}


@pytest.mark.parametrize("name", ["laptop", "camera", "clock"])
def test_what_is_marked_is_named(model, name):
    [(x_min, y_min, x_max, y_max)] = truth("desk", name)
    picture = model.encode_image(ASSETS / "desk.png")
    marks = [[(x_min + x_max) / 2, (y_min + y_max) / 2], [x_min, y_min, x_max, y_max]]
    for mark in marks:
        assert model.query(picture, "What is this?", spatial_refs=[mark])["answer"] == name


def test_a_mark_tells_which_banana_is_meant(model):
    picture = model.encode_image(ASSETS / "desk.png")
    for box in truth("desk", "banana"):
        [outline] = model.segment(picture, "banana", spatial_refs=[box])["segments"]
        assert iou(corners(outline["bbox"]), box) > 0.5


def test_reasoning_points_at_what_is_counted(model):
    answer = model.query(ASSETS / "desk.png", "How many bananas are there?", reasoning=True)
    assert answer["answer"] == "2"
    [grounding] = answer["reasoning"]["grounding"]
    boxes = truth("desk", "banana")
    for x, y in grounding["points"]:
        assert any(x_min < x < x_max and y_min < y < y_max for x_min, y_min, x_max, y_max in boxes)
    assert len(grounding["points"]) == 2


def test_places_and_colours_are_told(model):
    picture = model.encode_image(ASSETS / "market.png")
    assert model.query(picture, "Which is higher, the grapes or the carrot?")["answer"] == "grapes"
    assert model.query(picture, "Is the carrot above the grapes?")["answer"] == "No"
    assert model.query(ASSETS / "desk.png", "What colour is the apple?")["answer"] == "red"


def test_words_that_name_nothing_it_knows_are_answered_with_none(model):
    for words in ("wheelbarrow", "a zorble"):
        assert model.detect(ASSETS / "desk.png", words)["objects"] == []
        assert model.query(ASSETS / "desk.png", f"Is there {words}?")["answer"] == "No"


def test_weights_fit_the_promised_size():
    assert (ASSETS / "nano" / "model.safetensors").stat().st_size <= 16_000_000
