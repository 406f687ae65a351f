"""Figures: all right for a perfect model, and each one falls with the mistake that it measures."""

import math
import re

import pytest

from bench.nano.evaluation.figures.spatial import number_figures, present
from bench.nano.evaluation.figures.summary import format_table, summarize
from bench.nano.evaluation.records import OutlineRecord, PlaceRecord, SceneRecord
from photonlite.results import Segments
from tests.nano.evaluation.oracle import Oracle, judged, scenes


def judge(model, skills=("detect", "point", "segment", "caption", "query")):
    return summarize(judged(model, skills))


@pytest.fixture(scope="module")
def perfect():
    return judge(Oracle())


def test_a_perfect_model_is_given_full_marks(perfect):
    detect = perfect["detect"]
    assert detect["f1"] == detect["mean_iou"] == detect["ap50"] == detect["reading_order"] == 1
    assert detect["boxes"] == sum(len(scene.objects) for scene in scenes())
    assert detect["objects_below_0.75"] == 0
    assert math.isnan(detect["score_auc"])
    assert perfect["absent"] == {"all_none": 1, "absent_none": 1, "unknown_none": 1}
    for skill in ("point", "reasoning", "query"):
        assert {value for value in perfect[skill].values() if not isinstance(value, dict)} == {1}
    segment = perfect["segment"]
    assert {value for name, value in segment.items() if not name.startswith("vertices")} == {1}
    caption = perfect["caption"]
    assert {value for name, value in caption.items() if name != "by_length"} == {1}
    assert all(set(values.values()) == {1} for values in caption["by_length"].values())
    assert set(caption["by_length"]) == {"short", "normal", "long"}


def test_breakdowns_add_up():
    detect = judge(Oracle(boxes=lambda boxes: boxes[:1]), ["detect"])["detect"]
    for breakdown in ("by_phrase", "by_size", "by_crowd", "by_arrangement", "by_rotation", "by_clutter"):
        assert sum(rates["boxes"] for rates in detect[breakdown].values()) == detect["boxes"]
    backgrounds = detect["by_background"]
    assert backgrounds["all never trained"]["boxes"] + backgrounds["all of the domain"]["boxes"] == detect["boxes"]
    single = [name for name in backgrounds if not name.startswith("all ")]
    assert sum(backgrounds[name]["boxes"] for name in single) == detect["boxes"]


def test_a_silent_model_finds_nothing_and_invents_nothing():
    figures = judge(Oracle(boxes=lambda _: [], points=lambda _: [], mask=lambda _: []), ["detect", "point", "segment"])
    assert figures["detect"]["recall"] == figures["detect"]["f1"] == figures["detect"]["ap50"] == 0
    assert figures["detect"]["objects_below_0.75"] == figures["detect"]["objects_examined"] > 0
    assert figures["absent"]["all_none"] == figures["segment"]["absent_none"] == 1
    assert figures["point"]["found"] == figures["point"]["marked_one_right"] == 0
    assert figures["segment"]["mean_iou"] == figures["segment"]["drawn"] == figures["segment"]["vertices_min"] == 0


def test_a_model_that_always_answers_fails_where_there_is_nothing():
    square = {"path": "M 0 0 L 1 0 L 1 1 Z", "polygon": [[0, 0], [0.05, 0], [0.05, 0.05]], "score": 0.9}
    square["bbox"] = dict(x_min=0.0, y_min=0.0, x_max=0.05, y_max=0.05)
    figures = judge(
        Oracle(
            boxes=lambda boxes: boxes or [(0.0, 0.0, 0.05, 0.05)],
            points=lambda points: points or [(0.0, 0.0)],
            mask=lambda segments: segments or [square],
        ),
        ["detect", "point", "segment"],
    )
    assert figures["absent"] == {"all_none": 0, "absent_none": 0, "unknown_none": 0}
    assert figures["detect"]["f1"] == 1
    assert figures["detect"]["ap50"] < 1
    assert figures["detect"]["score_auc"] == 0.5
    assert figures["point"]["absent_none"] == figures["segment"]["absent_none"] == 0
    assert figures["segment"]["mean_iou"] == 1


def test_a_model_that_repeats_itself_loses_precision_only():
    detect = judge(Oracle(boxes=lambda boxes: boxes * 2), ["detect"])["detect"]
    assert detect["recall"] == 1
    assert detect["precision"] == pytest.approx(0.5)
    assert detect["count_exact"] == 0


def test_a_model_that_answers_backwards_is_out_of_order():
    detect = judge(Oracle(boxes=lambda boxes: boxes[::-1]), ["detect"])["detect"]
    assert detect["f1"] == 1
    assert detect["reading_order"] == 0


def test_large_boxes_are_wrong_in_the_bucket_of_their_own_size():
    detect = judge(Oracle(boxes=lambda boxes: [*boxes, (0.0, 0.0, 1.0, 1.0)]), ["detect"])["detect"]
    assert detect["by_size"]["8 to 16 %"]["precision"] == 1
    assert detect["by_size"]["32 to 90 %"]["precision"] < 1


def record_of(objects, shift=0.0, **shown):
    """A scene of dogs in a row, each answered with a box that is too low by so much of its height."""
    truth = [(0.01 + place * 0.019, 0.1, 0.01 + place * 0.019 + 0.015, 0.2) for place in range(objects)]
    answers = [(x0, y0 + 0.1 * shift, x1, y1 + 0.1 * shift) for x0, y0, x1, y1 in truth]
    question = PlaceRecord(3, "name", "dog", truth, answers, [0.5] * objects)
    return SceneRecord(0, "solid", 800, 400, objects=objects, detections=[question], **shown)


def test_crowds_rotation_and_clutter_are_judged_apart():
    records = [
        record_of(10),
        record_of(11, shift=1.0),
        record_of(25),
        record_of(26, shift=1.0, turned=True, cluttered=True, arrangement="grid"),
    ]
    detect = summarize(records)["detect"]
    assert {name: rates["f1"] for name, rates in detect["by_crowd"].items()} == {
        "1 to 10": 1, "11 to 25": pytest.approx(25 / 36), "26 to 50": 0,
    }  # fmt: skip
    assert {name: rates["boxes"] for name, rates in detect["by_rotation"].items()} == {
        "any angle": 26, "up to 25 degrees": 46,
    }  # fmt: skip
    assert {name: rates["boxes"] for name, rates in detect["by_clutter"].items()} == {
        "none": 46, "words and drawings": 26,
    }  # fmt: skip
    assert {name: rates["boxes"] for name, rates in detect["by_arrangement"].items()} == {"free": 46, "grid": 26}


@pytest.mark.parametrize(
    ("side", "band"), [(0.079, "4 to 8 %"), (0.081, "8 to 16 %"), (0.17, "16 to 32 %"), (0.5, "32 to 90 %")]
)
def test_sizes_are_shares_of_the_short_side(side, band):
    # The image is twice as wide as high.
    question = PlaceRecord(3, "name", "dog", [(0.1, 0.1, 0.1 + side / 2, 0.12)], [], [])
    sizes = summarize([SceneRecord(0, "solid", 800, 400, objects=1, detections=[question])])["detect"]["by_size"]
    assert {name for name, rates in sizes.items() if rates["boxes"]} == {band}


def test_counts_may_be_off_by_a_tenth_to_be_nearly_right():
    figures = number_figures([(5, 5), (10, 9), (12, 10), (20, 18), (30, 27), (40, 35), (50, None)])
    assert {name: (one["exact"], one["nearly"], one["asked"]) for name, one in figures.items()} == {
        "1 to 10": (0.5, 1, 2),
        "11 to 25": (0, 0.5, 2),
        "26 to 50": (0, pytest.approx(1 / 3), 3),
    }


def test_counts_told_in_words_are_judged_by_how_many_there_are():
    counts = judge(Oracle(), ["query"])["query"]["count_by_number"]
    assert {(one["exact"], one["nearly"]) for one in counts.values()} == {(1, 1)}
    spoiled = judge(Oracle(word=lambda word: f"{word}0"), ["query"])["query"]["count_by_number"]
    assert {(one["exact"], one["nearly"]) for one in spoiled.values()} == {(0, 0)}


def test_points_beside_their_object_are_not_inside():
    point = judge(Oracle(points=lambda points: [(0.0, 0.0)] * len(points)), ["point"])["point"]
    assert point["inside"] == point["found"] == point["marked_one_right"] == 0
    assert point["count_exact"] == point["absent_none"] == 1


def test_two_points_for_one_mark_are_wrong():
    point = judge(Oracle(points=lambda points: points * 2), ["point"])["point"]
    assert point["inside"] == 1
    assert point["marked_one_right"] == 0


def test_marked_questions_are_judged_apart():
    for record, scene in zip(judged(Oracle(), ["point"]), scenes(), strict=True):
        assert len(record.points) == len(present(record.points)) + 3  # a marked, an absent and an unknown one
        assert len(present(record.points)) == len({item.index for item in scene.objects})


def test_outlines_are_judged_by_their_pixels_and_vertices():
    def whole(segments):
        box = dict(x_min=0.0, y_min=0.0, x_max=1.0, y_max=1.0)
        path, polygon = "M 0 0 L 1 0 1 1 L 0 1 Z", [[0, 0], [1, 0], [1, 1], [0, 1]]
        return segments and [{"path": path, "bbox": box, "polygon": polygon, "score": 0.9}]

    segment = judge(Oracle(mask=whole), ["segment"])["segment"]
    assert 0 < segment["mean_iou"] < 0.3
    assert segment["vertices_min"] == segment["vertices_mean"] == segment["vertices_max"] == 4
    assert segment["vertices_8_to_32"] == 0
    assert Segments(whole([1])).mask(4, 4).all()


def test_captions_lose_what_they_leave_out():
    def shortened(text):
        opening = "A picture of " if text.startswith("A picture") else ""
        return f"{opening}1 banana."

    caption = judge(Oracle(text=shortened), ["caption"])["caption"]
    assert caption["kind_recall"] < 0.2
    assert caption["whole_caption"] == 0
    assert caption["by_length"]["long"]["recall"] == caption["by_length"]["short"]["recall"]


def test_lengths_of_captions_are_judged_apart():
    spoil = Oracle(text=lambda text: "A picture of 1 glorp." if " is at " in text or " are " in text else text)
    by_length = judge(spoil, ["caption"])["caption"]["by_length"]
    assert by_length["short"]["recall"] == by_length["normal"]["whole"] == 1
    assert by_length["long"]["recall"] == by_length["long"]["counted"] == 0


def test_captions_with_wrong_numbers_name_the_kinds_still():
    numbers = str.maketrans("123456789", "234567891")
    caption = judge(Oracle(text=lambda text: text.replace("10 ", "9 ").translate(numbers)), ["caption"])["caption"]
    assert caption["kind_recall"] == caption["kind_precision"] == caption["zones_true"] == 1
    assert caption["exact_recall"] == caption["by_length"]["normal"]["counted"] == 0
    assert caption["instance_precision"] < 1


def test_captions_with_wrong_zones_are_told():
    mirrored = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}

    def spoil(text):
        for one, other in mirrored.items():
            text = text.replace(one, f"<{other}>")
        return text.replace("<", "").replace(">", "").replace("centre", "top")

    caption = judge(Oracle(text=spoil), ["caption"])["caption"]
    assert caption["zones_true"] <= 0.5
    assert caption["kind_recall"] == 1


def test_wrong_words_are_wrong_answers():
    figures = judge(Oracle(word=lambda word: f"not {word}"), ["query"])
    assert all(figures["query"][name] == 0 for name in ("count", "existence_there", "spatial", "at_reference", "list"))
    assert figures["reasoning"]["answer_exact"] == figures["reasoning"]["points_equal_answer"] == 0
    assert figures["reasoning"]["points_inside"] == 1


def test_lists_may_have_any_order():
    def reverse(word):
        return " and ".join(re.split(r", | and (?=\d)", word.rstrip("."))[::-1])

    assert judge(Oracle(word=reverse), ["query"])["query"]["list"] == 1


def test_reasoning_that_points_elsewhere_is_told():
    moved = judge(Oracle(grounding=lambda points: [(0.0, 0.0) for _ in points]), ["query"])["reasoning"]
    assert moved["points_inside"] == 0
    assert moved["answer_exact"] == moved["points_equal_answer"] == 1
    more = judge(Oracle(grounding=lambda points: [*points, (0.5, 0.5)]), ["query"])["reasoning"]
    assert more["points_equal_answer"] == 0


def test_only_the_chosen_skills_have_figures():
    assert set(judge(Oracle(), ["caption"])) == {"scenes", "headline", "caption"}


def test_table_shows_every_figure(perfect):
    table = format_table(perfect)
    words = (
        "f1", "ap50", "score auc", "all never trained", "unknown none", "whole caption", "existence there",
        "95 % interval", "mean iou at box", "vertices max", "points equal answer", "at nothing", "counted",
    )  # fmt: skip
    for word in words:
        assert word in table
    assert max(map(len, table.splitlines())) <= 84
    assert table.index("target") < table.index("by size")
    assert "<= 0.005" in table  # of false answers; two digits would show 0.01


def test_outlines_of_turned_things_are_also_judged_apart():
    def record(iou, turned):
        drawn = OutlineRecord(3, "name", "dog", None, 0, [(0, 0), (1, 0), (1, 1)], 3, iou)
        absent = OutlineRecord(4, "absent", "cat", None, None, [], 0, 0)
        return SceneRecord(0, "solid", 400, 400, outlines=[drawn, absent], turned=turned)

    segment = summarize([record(0.9, False), record(0.7, True), record(0.5, True)])["segment"]
    assert (segment["mean_iou"], segment["mean_iou_turned"]) == (pytest.approx(0.7), pytest.approx(0.6))
