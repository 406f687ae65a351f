from dataclasses import replace

from bench.kv_fp8.answers import SHOWN, Agreement, compare_records
from bench.nano.evaluation.records import CaptionRecord, PlaceRecord, QueryRecord, SceneRecord

LEFT, RIGHT = (0.1, 0.1, 0.4, 0.4), (0.6, 0.6, 0.9, 0.9)


def located(*answers: tuple[float, ...]) -> PlaceRecord:
    return PlaceRecord(0, "name", "a cup", [LEFT, RIGHT], [*answers], [0.9] * len(answers))


def record(*detections: PlaceRecord, caption: str = "1 cup.", count: str = "2") -> SceneRecord:
    points = [replace(one, answers=[(x, y) for x, y, _, _ in one.answers]) for one in detections]
    questions = [
        QueryRecord("count", "name", "how many?", "2", count),
        QueryRecord("existence", "name", "is there?", "Yes", "Yes"),
    ]
    return SceneRecord(1, "solid", 100, 100, [*detections], points, [CaptionRecord(caption, {0: 1})], questions)


def test_answers_are_compared_question_by_question() -> None:
    near = (0.1, 0.1, 0.4, 0.42)
    auto = [record(located(LEFT, RIGHT), located(LEFT)), record(located(RIGHT), caption="1 cup.")]
    fp8 = [record(located(near, RIGHT), located(LEFT, RIGHT), count="3"), record(located(LEFT), caption="2 cups.")]

    found = compare_records(auto, fp8)

    assert found.agreement == {
        "detect": Agreement(3, 2, 0),
        "point": Agreement(3, 2, 1),
        "caption": Agreement(2, 1, 1),
        "query": Agreement(4, 3, 3),
    }
    assert found.found_by_one == (1, 2)
    rows = {row[0]: row[1:] for row in found.rows()}
    assert len(rows) == len(SHOWN)
    assert rows["query, counts exact"] == ["1.000", "0.500", "-0.500"]
    assert rows["detect, mean IoU of the matches"][2].startswith("-0.0")
