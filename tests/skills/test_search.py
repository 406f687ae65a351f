from functools import partial
from typing import Any

import pytest

from photonlite.errors import PromptError, SettingsError
from photonlite.request import Completion, SamplingSettings, Token
from photonlite.results import Detections
from photonlite.skills import detect, point
from photonlite.skills.search import Scope, Search
from tests.skills.fake import METRICS, FakePrompts, completion, coordinate, size


def search(names: Any, **options: Any) -> Search[Detections]:
    build = partial(detect.build, FakePrompts(), settings=SamplingSettings())
    return Search(names, build, detect.finish, Scope(**options), 400)


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
    result = Search(["mug", "key"], build, point.finish, Scope(), 400).finish(
        joined(completion(coordinate(0.5), coordinate(0.5), 0), completion(coordinate(0.25), coordinate(0.5), 0))
    )

    assert [(item["x"], item["label"]) for item in result["points"]] == [(0.5, "mug"), (0.25, "key")]


@pytest.mark.parametrize("min_score", [-0.1, 1.1, True, "0.5", None, float("nan")])
def test_an_unusable_threshold_is_refused(min_score: Any) -> None:
    with pytest.raises(SettingsError, match=r"min_score is .*give a number from 0 to 1"):
        search("mug", min_score=min_score)


def test_unusable_names_and_overlaps_are_refused() -> None:
    with pytest.raises(SettingsError, match="overlap is 'all': it must be 'keep' or 'best'"):
        search("mug", overlap="all")
    with pytest.raises(PromptError, match="twice"):
        search(["mug", "mug"])


def test_each_name_is_asked_of_the_image_and_of_its_tiles() -> None:
    asked = search(["mug", "key"], tile=(2, 2))
    parts = asked.parts((100, 80))

    assert [request.subject for _, request in parts] == ["mug", "key"] * 5
    assert [region and region.box[:2] for region, _ in parts][::2] == [None, (0, 0), (42, 0), (0, 34), (42, 34)]
    assert len({id(request.grammar) for _, request in parts}) == 10
    assert search("mug", tile=(2, 2)).joined
    assert [region for region, _ in search("mug", tile=(1, 1)).parts((100, 80))] == [None]


def test_what_tiles_show_is_one_result_in_the_order_of_the_names() -> None:
    asked = search(["mug", "key"], tile=(1, 2), min_score=0.3)
    nothing, mug, key = found(), found(0.9, x=0.3), found(0.8, x=0.7)
    asked.parts((100, 80))
    whole, left, right = (found(0.6, x=0.5), key), (mug, nothing), (nothing, found(0.2))
    completion = Completion((), "stop", METRICS, (100, 80), (*whole, *left, *right))

    result = asked.finish(completion)
    assert [(item["label"], item["score"]) for item in result["objects"]] == [("mug", 0.6), ("mug", 0.9), ("key", 0.8)]
    assert result["objects"][1]["x_min"] == pytest.approx((0.3 - 0.125) * 0.58)


def test_too_many_requests_are_refused_with_the_number() -> None:
    names = [str(number) for number in range(30)]
    with pytest.raises(
        SettingsError, match="30 names in the image and its 9 tiles make 300 requests, over the limit of"
    ):
        search(names, tile=(3, 3))
    with pytest.raises(SettingsError, match="30 names in the image and its 9 tiles make 300 requests"):
        search(names, tile="auto").parts((1100, 1100))


def test_references_to_places_do_not_go_with_tiles() -> None:
    with pytest.raises(SettingsError, match="spatial_refs are places in the whole image"):
        Scope(tile="auto", spatial_refs=[(0.5, 0.5)])
    assert Scope(spatial_refs=[(0.5, 0.5)]).tile is None
