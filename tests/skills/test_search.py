from functools import partial
from typing import Any

import pytest

from photonlite.errors import PromptError, SettingsError
from photonlite.request import Completion, SamplingSettings, Token
from photonlite.results import Detections
from photonlite.skills import detect, point
from photonlite.skills.search import Search, check_search
from tests.skills.fake import METRICS, FakePrompts, completion, coordinate, size


def search(names: Any, **options: Any) -> Search[Detections]:
    build = partial(detect.build, FakePrompts(), settings=SamplingSettings())
    return Search(names, build, detect.finish, **{"min_score": 0.0, "overlap": "keep", **options})


def found(*probabilities: float, x: float = 0.5) -> Completion:
    tokens: list[Token | int] = []
    for probability in probabilities:
        tokens += [coordinate(x, probability=probability), coordinate(0.5), size(0.25, 0.25)]
    return completion(*tokens, 0)


def joined(*parts: Completion, reason: str = "stop") -> Completion:
    return Completion((), reason, METRICS, (6, 4), parts)


def test_one_name_is_one_request_whose_result_is_that_of_its_completion() -> None:
    asked = search(" mug ")
    result = asked.finish(found(0.9, 0.4))

    assert (asked.joined, [request.subject for request in asked.requests]) == (False, ["mug"])
    assert result == detect.finish(asked.requests[0], found(0.9, 0.4))
    assert (result.names, result.metrics, result.finish_reason) == (("mug",), METRICS, "stop")


def test_the_results_of_several_names_are_one_in_the_order_of_the_names() -> None:
    asked = search(["mug", "key", "dog"])
    result = asked.finish(joined(found(0.5), found(), found(0.9, 0.8), reason="max_objects"))

    assert [(item["label"], item["score"]) for item in result["objects"]] == [("mug", 0.5), ("dog", 0.9), ("dog", 0.8)]
    assert (result.names, result.class_ids.tolist()) == (("mug", "key", "dog"), [0, 2, 2])
    assert (result.picture_size, result.metrics, result.finish_reason) == ((6, 4), METRICS, "max_objects")


def test_each_request_of_several_names_has_a_grammar_of_its_own() -> None:
    requests = search(["mug", "key"]).requests
    requests[0].grammar.accept(coordinate(0.5))

    assert requests[0].grammar.allowed != requests[1].grammar.allowed


def test_lower_scores_are_left_out() -> None:
    assert [item["score"] for item in search("mug", min_score=0.4).finish(found(0.9, 0.39, 0.4))["objects"]] == [
        0.9,
        0.4,
    ]
    both = search(["mug", "key"], min_score=0.5).finish(joined(found(0.4), found(0.6)))
    assert both.labels == ["key"]


def test_the_best_of_overlapping_names_stays_if_asked_for() -> None:
    parts = joined(found(0.5), found(0.9))

    assert search(["mug", "cup"]).finish(parts).labels == ["mug", "cup"]
    assert search(["mug", "cup"], overlap="best").finish(parts).labels == ["cup"]


def test_points_are_joined_as_well() -> None:
    build = partial(point.build, FakePrompts(), settings=SamplingSettings())
    result = Search(["mug", "key"], build, point.finish, min_score=0.0, overlap="keep").finish(
        joined(completion(coordinate(0.5), coordinate(0.5), 0), completion(coordinate(0.25), coordinate(0.5), 0))
    )

    assert [(item["x"], item["label"]) for item in result["points"]] == [(0.5, "mug"), (0.25, "key")]


@pytest.mark.parametrize("min_score", [-0.1, 1.1, True, "0.5", None, float("nan")])
def test_an_unusable_threshold_is_refused(min_score: Any) -> None:
    with pytest.raises(SettingsError, match=r"min_score is .*give a number from 0 to 1"):
        search("mug", min_score=min_score)
    with pytest.raises(SettingsError, match="min_score"):
        check_search({"min_score": min_score})


def test_unusable_names_and_overlaps_are_refused() -> None:
    with pytest.raises(SettingsError, match="overlap is 'all': it must be 'keep' or 'best'"):
        search("mug", overlap="all")
    with pytest.raises(PromptError, match="twice"):
        search(["mug", "mug"])
