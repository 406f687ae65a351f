from typing import Any

import pytest

from photonlite.errors import InputError, PromptError, SettingsError, SpatialRefError
from photonlite.realtime.frames import Question


def test_arguments_left_out_of_a_change_are_kept() -> None:
    question = Question.of("point", object=" mug ", deadline_ms=33, settings={"max_objects": 3})

    changed = question.changed({"object": "key"})

    assert changed == Question("point", {"object": "key", "settings": {"max_objects": 3}}, 0.033)
    assert question.arguments["object"] == "mug"


def test_a_deadline_can_be_removed() -> None:
    assert Question.of("caption", deadline_ms=33).changed({"deadline_ms": None}).deadline_s is None


def test_naming_a_task_resets_all_but_the_deadline() -> None:
    point = Question.of("point", object="mug", spatial_refs=[(0.5, 0.5)], deadline_ms=33)

    assert point.changed({"task": "point", "object": "key"}) == Question("point", {"object": "key"}, 0.033)
    with pytest.raises(PromptError, match="object is missing"):
        point.changed({"task": "detect"})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"task": "detekt"}, InputError, "no task 'detekt'"),
        ({"task": ["detect"]}, InputError, "no task"),
        ({"question": "why?"}, InputError, "detect takes no 'question'"),
        ({"image": "other.png"}, InputError, "detect takes no 'image'"),
        ({"object": "  "}, PromptError, "object is empty"),
        ({"object": 7}, PromptError, "object is of type int"),
        ({"object": "m" * 1001}, PromptError, "over the limit of 1000"),
        ({"object": ["mug", "mug"]}, PromptError, "holds 'mug' twice"),
        ({"object": []}, PromptError, "list of objects is empty"),
        ({"min_score": 2}, SettingsError, "min_score is 2"),
        ({"tile": "3x"}, SettingsError, "tile is '3x'"),
        ({"task": "point", "object": "mug", "tile": 9, "spatial_refs": [[0, 0]]}, SettingsError, "in its tiles"),
        ({"overlap": "worst"}, SettingsError, "overlap is 'worst'"),
        ({"task": "query", "question": "why?", "min_score": 0.5}, InputError, "query takes no 'min_score'"),
        ({"task": "query"}, PromptError, "question is missing"),
        ({"task": "query", "question": "why?", "reasoning": "yes"}, InputError, "reasoning is 'yes'"),
        ({"task": "caption", "length": "epic"}, InputError, "length is 'epic'"),
        ({"task": "point", "object": "mug", "spatial_refs": 3}, SpatialRefError, "spatial_refs is of type int"),
        ({"settings": {"temprature": 1}}, SettingsError, "temprature"),
        ({"adapter": 7}, InputError, "adapter is 7: give the name"),
        ({"deadline_ms": 0}, SettingsError, "deadline_ms is 0"),
        ({"deadline_ms": True}, SettingsError, "deadline_ms is True"),
        ({"deadline_ms": "33"}, SettingsError, "deadline_ms is '33'"),
        ({"deadline_ms": float("nan")}, SettingsError, "deadline_ms is nan"),
        ({"deadline_ms": 10**400}, SettingsError, "deadline_ms is 1000"),
    ],
)
def test_unusable_questions_are_refused_before_any_frame(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Question.of("detect", object="mug").changed(changes)


def test_several_names_and_thresholds_are_kept_over_changes() -> None:
    question = Question.of("detect", object=(" mug", "key "), min_score=0.5, overlap="best")

    assert question.arguments == {"object": ["mug", "key"], "min_score": 0.5, "overlap": "best"}
    assert question.changed({"min_score": 0}).arguments["object"] == ["mug", "key"]


def test_tracking_stays_on_for_tasks_that_have_objects() -> None:
    question = Question.of("detect", object="mug", track=True)

    assert question.changed({"object": "key"}).track
    assert question.changed({"task": "point", "object": "key"}).track
    assert not question.changed({"track": False}).track
    caption = question.changed({"task": "caption"})
    assert not caption.track
    for track in (True, 1, None):
        with pytest.raises(InputError, match=r"track is .* detect, point, segment"):
            caption.changed({"track": track})
