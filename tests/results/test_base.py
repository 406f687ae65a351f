import copy
import json
import pickle

import pytest

from photonlite.results import Answer, Caption, Detections, Metrics, Points, Segments

BOX = {"x_min": 0.1, "y_min": 0.2, "x_max": 0.5, "y_max": 0.75, "label": "mug", "score": 0.875}
POINT = {"x": 0.25, "y": 0.5, "label": "mug", "score": 0.5}
SEGMENT = {
    "path": "M 0 0 L 1 0 L 1 1 Z",
    "bbox": {"x_min": 0.0, "y_min": 0.0, "x_max": 0.5, "y_max": 0.5},
    "polygon": [[0.0, 0.0], [0.5, 0.0], [0.5, 0.5]],
    "label": "mug",
    "score": 0.25,
}
METRICS = Metrics(0.01, 0.2, 0.3, 0.5, prompt_tokens=740, output_tokens=12, time_to_first_token_s=0.51)
REASONING = {"text": "There are two.", "grounding": []}
RESULTS = [
    (Detections([BOX], metrics=METRICS, finish_reason="length"), {"objects": [BOX]}),
    (Points([POINT], metrics=METRICS, finish_reason="length"), {"points": [POINT]}),
    (Segments([SEGMENT], metrics=METRICS, finish_reason="length"), {"segments": [SEGMENT]}),
    (Caption("A mug.", metrics=METRICS, finish_reason="length"), {"caption": "A mug."}),
    (Answer("Two.", metrics=METRICS, finish_reason="length"), {"answer": "Two."}),
    (
        Answer("Two.", REASONING, metrics=METRICS, finish_reason="length"),
        {"answer": "Two.", "reasoning": REASONING},
    ),
]
all_results = pytest.mark.parametrize(("result", "plain"), RESULTS, ids=lambda value: type(value).__name__)


@all_results
def test_result_is_the_plain_mapping(result, plain):
    assert result == plain
    assert isinstance(result, dict)
    assert list(result) == list(plain)
    assert {**result} == plain


@all_results
def test_json_round_trip_keeps_everything(result, plain):
    assert json.loads(json.dumps(result)) == plain
    assert type(result)(**json.loads(json.dumps(result))) == result


@all_results
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda r: r.copy(), lambda r: pickle.loads(pickle.dumps(r))]
)
def test_copies_keep_type_and_attributes(result, plain, duplicate):
    duplicated = duplicate(result)
    assert type(duplicated) is type(result)
    assert duplicated == plain
    assert duplicated.metrics == METRICS
    assert duplicated.finish_reason == "length"


@all_results
def test_attributes_are_not_keys_and_are_ignored_in_comparisons(result, plain):
    assert "metrics" not in result
    assert type(result)(**plain).metrics is None
    assert type(result)(**plain) == result


def test_metrics_go_to_json_by_name_and_add_up():
    assert json.loads(json.dumps(METRICS.to_dict())) == {
        "preprocess_s": 0.01,
        "encode_s": 0.2,
        "prefill_s": 0.3,
        "decode_s": 0.5,
        "prompt_tokens": 740,
        "output_tokens": 12,
        "time_to_first_token_s": 0.51,
        "queue_s": 0.0,
        "requests": 1,
        "tiles": 0,
    }
    assert METRICS.total_s == pytest.approx(1.01)


def test_metrics_and_finish_reason_can_be_set_later():
    result = Detections([])
    result.metrics, result.finish_reason = METRICS, "stop"
    assert (result.metrics, result.finish_reason) == (METRICS, "stop")


def test_repr_shows_label_score_place_and_time():
    shown = repr(Detections([BOX, {**BOX, "label": "desk lamp"}], metrics=METRICS, finish_reason="length"))
    header, *rows = shown.splitlines()
    assert header == "Detections: 2 objects (1.010 s, finish_reason='length')"
    assert rows == [
        "  mug        0.88  (0.100, 0.200) to (0.500, 0.750)",
        "  desk lamp  0.88  (0.100, 0.200) to (0.500, 0.750)",
    ]


def test_repr_of_points_in_pixels_names_the_size():
    assert (
        repr(Points([POINT]).to_pixels(640, 480))
        == "Points: 1 point in pixels of 640 x 480\n  mug  0.50  (160.0, 240.0)"
    )


def test_repr_of_a_long_list_is_cut():
    rows = repr(Points([POINT] * 50)).splitlines()
    assert len(rows) == 22
    assert rows[-1] == "  ... and 30 more"
