"""Figures beside their targets: the same as in the breakdown, with intervals that hold them."""

import pytest

from bench.nano.evaluation.figures.headline import TARGETS, compare
from bench.nano.evaluation.figures.summary import summarize
from bench.nano.evaluation.records import PlaceRecord, QueryRecord, SceneRecord
from tests.nano.evaluation.oracle import Oracle, judged, perfect_records


def rows(records, resamples=200):
    return {row.name: row for row in compare(records, resamples)}


@pytest.fixture(scope="module")
def spoiled():
    return judged(
        Oracle(
            boxes=lambda boxes: [(x0, y0, x1, y0 + 0.8 * (y1 - y0)) for x0, y0, x1, y1 in boxes[:2]],
            points=lambda points: [*points[1:], (0.0, 0.0)],
            text=lambda text: text.replace("1 ", "1 old "),
            word=lambda word: word.replace("1", "2").replace("Yes", "No").replace("a", "e"),
        )
    )


def test_a_perfect_model_meets_every_target():
    found = compare(perfect_records(), 50)
    missing = {target.name for target in TARGETS} - {row.name for row in found}
    assert missing == {
        "detect, F1 among 11 to 25 objects",
        "detect, F1 among 26 to 50 objects",
        "query, counts exact among 11 to 25 objects",
        "query, counts within a tenth among 26 to 50 objects",
    }  # the scenes have up to ten objects
    assert [row.name for row in found] == [target.name for target in TARGETS if target.name not in missing]
    assert all(row.met for row in found)
    for row in found:
        assert row.figure == (0 if row.at_most else 1)
        assert row.interval in (None, (row.figure, row.figure))


def test_headline_figures_are_those_of_the_breakdown(spoiled):
    figures, headline = summarize(spoiled), rows(spoiled)
    detect = figures["detect"]
    phrases, backgrounds = detect["by_phrase"], detect["by_background"]
    same = {
        "detect, F1 at IoU 0.5": detect["f1"],
        "detect, mean IoU of the matches": detect["mean_iou"],
        "detect, AP50": detect["ap50"],
        "detect, F1 of the worst size": min(rates["f1"] for rates in detect["by_size"].values()),
        "detect, recall of the worst object": min(rates["recall"] for rates in detect["worst_objects"].values()),
        "detect, F1 of names less synonyms'": phrases["name"]["f1"] - phrases["synonym"]["f1"],
        "detect, F1 on trained less new backgrounds": backgrounds["all of the domain"]["f1"]
        - backgrounds["all never trained"]["f1"],
        "detect, calibration error of the worst shift": max(
            group["error"] for group in figures["calibration"]["by_shift"].values()
        ),
        "point, inside the object": figures["point"]["inside"],
        "segment, mean IoU of masks": figures["segment"]["mean_iou"],
        "segment, outlines with spikes": 1 - figures["segment"]["smooth"],
        "query, counts exact": figures["query"]["count"],
        **{f"detect, F1 among {crowd} objects": rates["f1"] for crowd, rates in figures["detect"]["by_crowd"].items()},
        "query, counts exact among 1 to 10 objects": figures["query"]["count_there"],
        "query, is there": figures["query"]["existence"],
        "query, spatial": figures["query"]["spatial"],
        "query, at a reference": figures["query"]["at_reference"],
        "caption, recall of objects": figures["caption"]["kind_recall"],
        "caption, precision of objects": figures["caption"]["kind_precision"],
        "typed, fields right": figures["typed"]["fields_right"],
        "typed, right under names never trained on": figures["typed"]["unseen_names"],
        "typed, answers that keep to the schema": figures["typed"]["valid"],
    }
    assert {name: row.figure for name, row in headline.items() if name in same} == pytest.approx(same)
    assert len(same) == len(headline) - 1
    assert sum(not row.met for row in headline.values()) >= 10


def test_false_answers_are_those_of_all_places():
    everywhere = rows(judged(Oracle(boxes=lambda boxes: boxes or [(0.0, 0.0, 0.1, 0.1)])))
    row = everywhere["false answers for absent things"]
    assert row.figure == pytest.approx(2 / 5)  # of two boxes, two points and one outline a scene, the boxes
    assert not row.met


def test_intervals_hold_the_figure_and_do_not_change(spoiled):
    first, again = rows(spoiled), rows(spoiled)
    assert first == again
    row = first["query, counts exact"]
    low, high = row.interval
    assert low < row.figure < high
    assert first["detect, recall of the worst object"].interval is None


def test_more_scenes_give_narrower_intervals(spoiled):
    low, high = rows(spoiled)["query, counts exact"].interval
    less, more = rows(spoiled * 9)["query, counts exact"].interval
    assert more - less == pytest.approx((high - low) / 3, rel=0.35)


def test_what_was_not_asked_has_no_row():
    assert {name.split(",")[0] for name in rows(judged(Oracle(), ["caption"]))} == {"caption"}
    assert compare([]) == []


def test_a_silent_model_does_not_pass_for_want_of_figures():
    silent = rows(judged(Oracle(boxes=lambda _: [], points=lambda _: []), ["detect", "point"]))
    assert not silent["detect, mean IoU of the matches"].met
    assert not silent["point, inside the object"].met


def counted(objects, *pairs):
    """A record of counts in a scene of so many objects: of so many things, so many were told."""
    questions = [QueryRecord("count", "name", "How many?", str(true), str(told)) for true, told in pairs]
    return SceneRecord(0, "wood", 100, 100, questions=questions, objects=objects)


def test_counts_are_judged_by_crowd_and_may_be_a_tenth_off_in_the_largest():
    found = rows(
        [counted(10, (0, 1), (2, 2), (3, 4)), counted(25, (11, 11), (20, 21)), counted(50, (40, 44), (4, 5), (30, "?"))]
    )
    assert found["query, counts exact among 1 to 10 objects"].figure == 0.5
    assert found["query, counts exact among 11 to 25 objects"].figure == 0.5
    assert found["query, counts within a tenth among 26 to 50 objects"].figure == pytest.approx(1 / 3)


def test_crowds_have_rows_of_their_own():
    box, other = (0.1, 0.1, 0.3, 0.3), (0.6, 0.6, 0.9, 0.9)
    records = [
        SceneRecord(
            0, "wood", 100, 100, objects=count, detections=[PlaceRecord(0, "name", "cat", [box], [found], [1.0])]
        )
        for count, found in ((10, box), (25, other), (50, box))
    ]
    found = [rows(records)[f"detect, F1 among {crowd} objects"] for crowd in ("1 to 10", "11 to 25", "26 to 50")]
    assert [row.figure for row in found] == [1, 0, 1]
