import json
import math
import re
from collections import Counter

import numpy as np
import pytest

from bench.nano import evaluate, failures
from bench.nano.evaluate import collect, main, write_report
from bench.nano.examine import examine
from bench.nano.figures import format_table, summarize
from bench.nano.language import caption, reading_order
from bench.nano.objects import index_of, load_objects
from bench.nano.scenes import make_scene

OBJECTS = load_objects()
SEEDS = range(100, 112)
FORM = re.compile(r"^(?:all the|the|all|every|each|any|an?) ", re.IGNORECASE)


class Oracle:
    """Answers from the truth of the scene whose picture it is shown, after `spoil` had its way with the boxes."""

    def __init__(self, scenes, spoil=lambda boxes: boxes):
        self.truth = {scene.jpeg: scene for scene in scenes}
        self.spoil = spoil
        self.encoded = 0

    def encode_image(self, image):
        self.encoded += 1
        return next(scene for scene in self.truth.values() if scene.image is image)

    def boxes(self, scene, text):
        kind = index_of(FORM.sub("", text))
        boxes = scene.boxes_of(kind) if kind is not None else []
        return self.spoil([boxes[i] for i in reading_order(boxes)])

    def detect(self, image, object):
        keys = ("x_min", "y_min", "x_max", "y_max")
        return {"objects": [dict(zip(keys, box, strict=True), score=0.9) for box in self.boxes(image, object)]}

    def point(self, image, object):
        boxes = self.boxes(image, object)
        return {"points": [{"x": (b[0] + b[2]) / 2, "y": (b[1] + b[3]) / 2, "score": 0.9} for b in boxes]}

    def caption(self, image, length):
        centres = [((i.box[0] + i.box[2]) / 2, (i.box[1] + i.box[3]) / 2) for i in image.objects]
        instances = [(item.index, *centre) for item, centre in zip(image.objects, centres, strict=True)]
        return {"caption": caption(instances, length)}

    def query(self, image, question):
        named = [
            (len(word), index)
            for index, item in enumerate(OBJECTS)
            for word in (*item.names, *item.plurals)
            if re.search(rf"\b{re.escape(word)}\b", question.lower())
        ]
        if re.search("objects|things|everything", question.lower()):
            return {"answer": str(len(image.objects))}
        count = len(image.boxes_of(max(named)[1])) if named else 0
        if re.search("how many|count|number", question.lower()):
            return {"answer": str(count)}
        return {"answer": "Yes" if count else "No"}


@pytest.fixture(scope="module")
def sprites():
    rng = np.random.default_rng(0)
    made = np.full((len(OBJECTS), 32, 32, 4), 255, np.uint8)
    made[..., :3] = rng.integers(0, 256, (len(OBJECTS), 1, 1, 3))
    return made


@pytest.fixture(scope="module")
def scenes(sprites):
    return [make_scene(seed, OBJECTS, sprites, size=(320, 240)) for seed in SEEDS]


def judge(scenes, model, skills=("detect", "point", "caption", "query")):
    return summarize([examine(model, scene, seed, skills) for scene, seed in zip(scenes, SEEDS, strict=True)])


def test_a_perfect_model_is_given_full_marks(scenes):
    figures = judge(scenes, Oracle(scenes))
    detect = figures["detect"]
    assert detect["f1"] == detect["mean_iou"] == detect["ap50"] == detect["reading_order"] == 1
    assert detect["boxes"] == sum(len(scene.objects) for scene in scenes)
    assert math.isnan(detect["score_auc"])
    assert figures["absent"] == {"all_none": 1, "absent_none": 1, "unknown_none": 1}
    assert set(figures["point"].values()) == {1}
    assert set(figures["caption"].values()) == {1}
    assert set(figures["query"].values()) == {1}


def test_breakdowns_add_up(scenes):
    detect = judge(scenes, Oracle(scenes, lambda boxes: boxes[:1]), ["detect"])["detect"]
    for breakdown in ("by_phrase", "by_size"):
        assert sum(rates["boxes"] for rates in detect[breakdown].values()) == detect["boxes"]
    backgrounds = detect["by_background"]
    assert backgrounds["all never trained"]["boxes"] + backgrounds["all of the domain"]["boxes"] == detect["boxes"]
    single = [name for name in backgrounds if not name.startswith("all ")]
    assert sum(backgrounds[name]["boxes"] for name in single) == detect["boxes"]


def test_a_silent_model_finds_nothing_and_invents_nothing(scenes):
    figures = judge(scenes, Oracle(scenes, lambda boxes: []), ["detect", "point"])
    assert figures["detect"]["recall"] == figures["detect"]["f1"] == figures["detect"]["ap50"] == 0
    assert figures["absent"]["all_none"] == 1
    assert figures["point"]["found"] == 0


def test_a_model_that_always_answers_fails_where_there_is_nothing(scenes):
    figures = judge(scenes, Oracle(scenes, lambda boxes: boxes or [(0.0, 0.0, 0.05, 0.05)]), ["detect", "point"])
    assert figures["absent"] == {"all_none": 0, "absent_none": 0, "unknown_none": 0}
    assert figures["detect"]["f1"] == 1
    assert figures["detect"]["ap50"] < 1
    assert figures["detect"]["score_auc"] == 0.5
    assert figures["point"]["absent_none"] == 0


def test_a_model_that_repeats_itself_loses_precision_only(scenes):
    detect = judge(scenes, Oracle(scenes, lambda boxes: boxes * 2), ["detect"])["detect"]
    assert detect["recall"] == 1
    assert detect["precision"] == pytest.approx(0.5)
    assert detect["count_exact"] == 0


def test_a_model_that_answers_backwards_is_out_of_order(scenes):
    detect = judge(scenes, Oracle(scenes, lambda boxes: boxes[::-1]), ["detect"])["detect"]
    assert detect["f1"] == 1
    assert detect["reading_order"] == 0


def test_large_boxes_are_wrong_in_the_bucket_of_their_own_size(scenes):
    detect = judge(scenes, Oracle(scenes, lambda boxes: [*boxes, (0.0, 0.0, 1.0, 1.0)]), ["detect"])["detect"]
    assert detect["by_size"]["up to 48 px"]["precision"] == 1
    assert detect["by_size"]["over 96 px"]["precision"] < 1


def test_only_the_chosen_skills_are_asked(scenes):
    figures = judge(scenes, Oracle(scenes), ["caption"])
    assert set(figures) == {"scenes", "caption"}


def test_questions_are_the_same_whatever_else_is_asked(scenes):
    model = Oracle(scenes)
    alone = examine(model, scenes[0], 100, ["point"])
    together = examine(model, scenes[0], 100)
    assert alone.points == together.points


def test_every_kind_is_asked_for_and_two_things_that_are_not_there(scenes):
    record = examine(Oracle(scenes), scenes[0], 100, ["detect"])
    wanted = [question.wanted for question in record.detections]
    assert {question.kind for question in record.detections if question.truth} == {o.index for o in scenes[0].objects}
    assert (wanted.count("absent"), wanted.count("unknown")) == (1, 1)
    assert not any(question.truth for question in record.detections if question.wanted in ("absent", "unknown"))


def test_a_picture_is_encoded_once_for_all_questions(scenes):
    model = Oracle(scenes)
    examine(model, scenes[0], 100)
    assert model.encoded == 1


def test_table_shows_every_figure(scenes):
    table = format_table(judge(scenes, Oracle(scenes)))
    for word in ("f1", "ap50", "score auc", "all never trained", "unknown none", "whole caption", "existence there"):
        assert word in table
    assert max(map(len, table.splitlines())) <= 80


def test_report_is_written(scenes, sprites, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "find_sprites", lambda: sprites)
    # The page draws its scenes anew from their seeds.
    by_seed = dict(zip(SEEDS, scenes, strict=True))
    monkeypatch.setattr(failures, "make_scene", lambda seed, *_: by_seed[seed])
    model = Oracle(scenes, lambda boxes: boxes[:-1] if len(boxes) > 1 else boxes)
    repeated = sum(count > 1 for scene in scenes for count in Counter(item.index for item in scene.objects).values())
    records = [examine(model, scene, seed) for scene, seed in zip(scenes, SEEDS, strict=True)]
    write_report(tmp_path, records, summarize(records))
    assert json.loads((tmp_path / "figures.json").read_text())["scenes"] == len(scenes)
    assert len(json.loads((tmp_path / "records.json").read_text())) == len(scenes)
    page = (tmp_path / "failures.html").read_text(encoding="utf-8")
    pictures = re.findall(r'src="([^"]+)"', page)
    assert len(pictures) == 2 * repeated > 0  # one for detect, one for point, and none for what went right
    assert all((tmp_path / picture).stat().st_size for picture in pictures)


def test_scenes_without_mistakes_are_left_off_the_page(scenes, sprites, tmp_path):
    records = [examine(Oracle(scenes), scene, seed) for scene, seed in zip(scenes, SEEDS, strict=True)]
    page = failures.write_failures(tmp_path, records, OBJECTS, sprites)
    assert "<img" not in page.read_text(encoding="utf-8")


def test_command_line_examines_the_public_model(sprites, tmp_path, monkeypatch, capsys):
    class Blind:
        def detect(self, image, object):
            return {"objects": []}

    loaded = []
    monkeypatch.setattr(
        evaluate.photonlite, "load", lambda model, **options: loaded.append((model, options)) or Blind()
    )
    monkeypatch.setattr(evaluate, "find_sprites", lambda: sprites)
    asked = ["--model", "some/folder", "--scenes", "3", "--skills", "detect", "--kv-dtype", "fp8"]
    main([*asked, "--out", str(tmp_path)])
    assert loaded == [("some/folder", {"device": "cpu", "dtype": "auto", "engine": {"kv_dtype": "fp8"}})]
    assert "3 scenes" in capsys.readouterr().out
    assert json.loads((tmp_path / "figures.json").read_text())["detect"]["recall"] == 0


def test_records_come_in_the_order_of_the_seeds(sprites, monkeypatch):
    monkeypatch.setattr(evaluate.photonlite, "load", lambda *_, **__: None)
    monkeypatch.setattr(evaluate, "find_sprites", lambda: sprites)
    monkeypatch.setattr(evaluate, "examine", lambda _model, _scene, seed, _skills: seed)
    assert list(collect(evaluate.Job(None, "cpu", "auto", ("detect",)), [5, 3, 4], workers=0)) == [5, 3, 4]
