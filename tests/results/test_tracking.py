import sys
from typing import Any

import pytest

from photonlite import Detections, Points, Segments, Tracker
from photonlite.errors import InputError, MissingDependencyError, SettingsError
from photonlite.results import Caption


def box(x: float, label: str = "ball", y: float = 0.5, score: float = 0.9) -> dict[str, Any]:
    return {"x_min": x, "y_min": y, "x_max": x + 0.1, "y_max": y + 0.1, "label": label, "score": score}


def found(*boxes: dict[str, Any]) -> Detections:
    return Detections(list(boxes), picture_size=(640, 480))


def ids(result: Any) -> list[int | None]:
    return [item.track_id for item in result.objects]


def test_an_object_keeps_its_id_while_it_moves() -> None:
    tracker = Tracker()
    seen = [ids(tracker.update(found(box(0.02 * frame), box(0.8 - 0.02 * frame, y=0.1)))) for frame in range(20)]

    assert seen == [[None, None], *[[1, 2]] * 19]


def test_ids_follow_objects_whatever_their_order() -> None:
    tracker = Tracker()
    left, right = box(0.1), box(0.8)
    for _ in range(2):
        tracker.update(found(left, right))

    assert ids(tracker.update(found(right, left))) == [2, 1]


def test_a_hidden_object_keeps_its_id_for_a_while() -> None:
    tracker = Tracker(rate=10, keep_s=2)
    for _ in range(3):
        tracker.update(found(box(0.5)))
    for _ in range(18):
        assert tracker.update(found()) == {"objects": []}
    assert ids(tracker.update(found(box(0.5)))) == [1]
    for _ in range(22):
        tracker.update(found())
    tracker.update(found(box(0.5)))
    assert ids(tracker.update(found(box(0.5)))) == [2]


def test_times_decide_how_long_an_object_was_hidden() -> None:
    tracker = Tracker(keep_s=1)
    tracker.update(found(box(0.5)), 10.0)
    assert ids(tracker.update(found(box(0.5)), 10.1)) == [1]
    assert ids(tracker.update(found(box(0.5)), 10.9)) == [1]
    tracker.update(found(), 12.5)
    tracker.update(found(box(0.5)), 12.6)
    assert ids(tracker.update(found(box(0.5)), 12.7)) == [2]


def test_labels_are_tracked_apart() -> None:
    tracker = Tracker()
    tracker.update(found(box(0.5, "cup"), box(0.51, "mug")))
    assert ids(tracker.update(found(box(0.51, "mug"), box(0.5, "cup")))) == [2, 1]
    assert ids(tracker.update(found(box(0.5, "mug")))) == [2]


def test_without_a_least_overlap_an_object_gets_no_id_of_another_label_or_place() -> None:
    tracker = Tracker(min_overlap=0)
    for _ in range(2):
        tracker.update(found(box(0.1, "cat")))
    for _ in range(2):
        dog = tracker.update(found(box(0.8, "dog")))
        assert ids(dog) != [1]
    assert ids(dog) == [2]


def test_doubtful_objects_keep_an_id_and_get_none() -> None:
    tracker = Tracker(min_score=0.5)
    for _ in range(2):
        tracker.update(found(box(0.1)))
    for _ in range(3):
        assert ids(tracker.update(found(box(0.1, score=0.2), box(0.8, score=0.4)))) == [1, None]


def test_a_good_object_gets_the_id_before_a_doubtful_one() -> None:
    tracker = Tracker(min_score=0.5)
    for _ in range(2):
        tracker.update(found(box(0.1)))

    assert ids(tracker.update(found(box(0.1, score=0.2), box(0.13)))) == [None, 1]


def test_pixels_are_tracked_as_normalised_coordinates_are() -> None:
    tracker = Tracker()
    tracker.update(found(box(0.5, "cup"), box(0.51, "mug")))
    pixels = found(box(0.51, "mug"), box(0.5, "cup")).to_pixels(640, 480)

    assert ids(tracker.update(pixels)) == [2, 1]


def test_points_and_segments_are_tracked_as_well() -> None:
    tracker, other = Tracker(), Tracker()
    for frame in range(3):
        point = {"x": 0.2 + 0.03 * frame, "y": 0.5, "label": "ball"}
        points = tracker.update(Points([point], picture_size=(640, 480)))
        corners = box(0.1 + 0.02 * frame)
        outline = {"bbox": {key: corners[key] for key in ("x_min", "y_min", "x_max", "y_max")}, "path": "M0 0L1 0L1 1z"}
        segments = other.update(Segments([outline]))

    assert [item.track_id for item in points.points] == [1]
    assert [item.track_id for item in segments.segments] == [1]


def test_the_result_handed_in_stays_as_it_is_and_the_new_one_keeps_its_attributes() -> None:
    before = found(box(0.5)).to_pixels(640, 480)
    after = Tracker().update(before)

    assert "track_id" not in before["objects"][0]
    assert type(after) is Detections
    assert after.pixel_size == after.picture_size == (640, 480)
    assert {key: value for key, value in after["objects"][0].items() if key != "track_id"} == before["objects"][0]


def test_supervision_gets_the_ids() -> None:
    tracker = Tracker()
    tracker.update(found(box(0.5)))
    tracked = tracker.update(found(box(0.5), box(0.1)))

    assert tracked.to_supervision().tracker_id.tolist() == [1, -1]
    assert found(box(0.5)).to_supervision().tracker_id is None


def test_ids_that_are_texts_are_none_to_supervision() -> None:
    boxes = [{**box(0.1), "track_id": number} for number in (7, "e3f0-11", None, 10**20)]

    assert found(*boxes).to_supervision().tracker_id.tolist() == [7, -1, -1, -1]


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0},
        {"keep_s": -1},
        {"min_score": 2},
        {"min_overlap": "0.1"},
        {"min_overlap": 1.0},
        {"rate": float("nan")},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        Tracker(**options)


def test_other_results_and_times_that_do_not_grow_are_refused() -> None:
    tracker = Tracker()
    tracker.update(found(), 1.0)

    with pytest.raises(InputError, match="a Caption cannot be tracked"):
        tracker.update(Caption("A ball."))  # type: ignore[type-var]
    for time_s in (1.0, 0.5, float("nan")):
        with pytest.raises(InputError, match="times that grow"):
            tracker.update(found(), time_s)


def test_without_the_package_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackers", None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'photonlite\[track\]'"):
        Tracker()
