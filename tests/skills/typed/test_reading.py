import json

from photonlite.request import Token
from photonlite.results import Caption
from photonlite.skills.typed.question import TypedReader
from tests.skills.fake import FakePrompts, completion, coordinate, size

BOX = '{"x_min":0.25,"y_min":0.5,"x_max":0.75,"y_max":1.0,"score":0.5}'
POINT = '{"x":0.5,"y":0.75,"score":1.0}'


def pieces(*tokens: Token | int) -> list[str]:
    return list(Caption(iter(completion(*tokens).tokens), reader=TypedReader(FakePrompts()))["caption"])


def test_words_are_yielded_once_they_are_certain() -> None:
    assert pieces(21, 22, 0) == ["<21>", "<22>"]


def test_a_box_is_written_when_its_size_is_known() -> None:
    box = coordinate(0.5, 0.5), coordinate(0.75, 0.5), size(0.5, 0.5, (0.5, 0.5))

    assert pieces(21, *box, 22, 0) == ["<21>" + BOX, "<22>"]


def test_a_point_is_written_when_no_size_follows() -> None:
    point = coordinate(0.5), coordinate(0.75)

    assert "".join(pieces(21, *point, 22, *point, 0)) == "<21>" + POINT + "<22>" + POINT
    assert "".join(pieces(*point)) == POINT  # nothing follows at all


def test_numbers_are_clamped_and_rounded() -> None:
    spelled = json.loads("".join(pieces(coordinate(1 / 3, 1e-30), coordinate(0.99), size(0.1, 0.1, (1e-30, 1e-30)))))

    assert spelled == {"x_min": 0.283333, "y_min": 0.94, "x_max": 0.383333, "y_max": 1.0, "score": spelled["score"]}
    assert 0 < spelled["score"] < 1e-6
