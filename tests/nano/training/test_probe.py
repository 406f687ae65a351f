import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch

from bench.nano.questions.layout import BOS
from bench.nano.questions.mix import LENGTHS
from bench.nano.training import probe
from photonlite.images.crops import ImageCrops
from photonlite.request import SamplingSettings
from photonlite.skills import detect
from tests.nano.small import maker, scenes_of, shipped_prompts
from tests.plain import PlainEngine
from tests.tiny import CPU, tiny_config, tiny_model, tiny_prompts

SUBJECTS = ("a", "dog", "two mugs", "banana", "the red cup", "x")


# ---- greedy decoding is that of the engine that serves


def by_engine(engine, prompts, image, subject, limit):
    request = detect.build(prompts, subject, settings=SamplingSettings(max_objects=limit))
    tokens = engine.generate(request, ImageCrops(image[None].numpy(), (1, 1))).complete().tokens
    values = [value for token in tokens for value in token.values]
    return [token.id for token in request.prompt], torch.tensor(values).reshape(-1, 4)


@pytest.mark.long
def test_boxes_are_those_of_the_engine_that_serves():
    config = tiny_config()
    prompts = tiny_prompts(config)
    counts = []
    # Random models find everything or nothing: with the end made this much more likely, images differ.
    for (seed, shift), limit in itertools.product(((0, -1.0), (2, -2.0), (3, 1.75), (6, -1.0)), (2, 10)):
        model = tiny_model(config, seed)
        model.text.lm_head.bias[BOS] += shift
        engine = PlainEngine(model, CPU, torch.float32)
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (len(SUBJECTS), 20, 20, 3), generator=generator, dtype=torch.uint8)
        expected = [by_engine(engine, prompts, *case, limit) for case in zip(images, SUBJECTS, strict=True)]
        ids = [[*prompt, *[BOS] * (LENGTHS["objects"] - len(prompt))] for prompt, _ in expected]
        length = torch.tensor([len(prompt) for prompt, _ in expected])

        boxes, count = probe.detect(model, images, torch.tensor(ids), length, limit)

        counts.append(count.tolist())
        assert counts[-1] == [len(found) for _, found in expected]
        for row, (_, found) in enumerate(expected):
            assert torch.allclose(boxes[row, : len(found)], found, atol=1e-6)
    # None, some, and as many as are allowed, side by side.
    assert {0, 1, 2, 10} <= set(itertools.chain(*counts))
    assert sum(len(set(row)) > 1 for row in counts) >= 4


# ---- figures


def scenes_with(rows):
    """Scenes from lists of (label, cx, cy, w, h)."""
    labels, boxes = torch.full((len(rows), 10), -1), torch.zeros(len(rows), 10, 4)
    for n, row in enumerate(rows):
        for place, (label, *box) in enumerate(row):
            labels[n, place], boxes[n, place] = label, torch.tensor(box)
    pixels = torch.arange(len(rows), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 1, 3)
    return dataclasses.replace(scenes_of(labels, boxes), pixels=pixels)


SCENES = scenes_with(
    [
        [(0, 0.2, 0.2, 0.2, 0.2), (3, 0.7, 0.3, 0.1, 0.3), (0, 0.6, 0.8, 0.3, 0.3)],
        [(1, 0.5, 0.5, 0.4, 0.2)],
        [(4, 0.3, 0.3, 0.2, 0.2), (2, 0.8, 0.8, 0.2, 0.2), (4, 0.8, 0.2, 0.1, 0.1), (4, 0.2, 0.8, 0.1, 0.1)],
    ]
)
TRUE_BOXES, QUESTIONS = 8, 5  # of the objects; kinds that are there, of all scenes


def figures(monkeypatch, answer, chunk=128):
    """F1 of a model that gives `answer(true boxes of what is asked for)`."""
    kind_of = {tuple(shipped_ids(item.name)): kind for kind, item in enumerate(maker().objects)}
    asked = []

    def fake(model, pixels, prompt, length):
        boxes, count = torch.zeros(len(prompt), 10, 4), torch.zeros(len(prompt), dtype=torch.long)
        for row, (ids, n) in enumerate(zip(prompt.tolist(), length.tolist(), strict=True)):
            scene, kind = int(pixels[row, 0, 0, 0]), kind_of[tuple(ids[:n])]
            found = answer(SCENES.boxes[scene][SCENES.labels[scene] == kind])
            boxes[row, : len(found)], count[row] = found, len(found)
            asked.append((scene, kind))
        return boxes, count

    monkeypatch.setattr(probe, "detect", fake)
    result = probe.f1(SimpleNamespace(), SCENES, maker(), chunk)
    absent = [(scene, kind) for scene, kind in asked if not (SCENES.labels[scene] == kind).any()]
    assert sorted(scene for scene, _ in absent) == [0, 1, 2]
    assert len(asked) == len(set(asked)) == QUESTIONS + 3
    return result


def shipped_ids(name):
    return [token.id for token in shipped_prompts().detect(name)]


@pytest.mark.parametrize("chunk", [1, 3, 128])
def test_a_perfect_model(monkeypatch, chunk):
    crowds = {"f1_10": 1, "f1_25": 0, "f1_50": 0}  # no scene has more than ten objects
    assert figures(monkeypatch, lambda boxes: boxes.flip(0), chunk) == pytest.approx(
        {"f1": 1, "precision": 1, "recall": 1, "iou": 1, "none": 1} | crowds
    )


def test_a_silent_model(monkeypatch):
    made = figures(monkeypatch, lambda boxes: boxes[:0])
    assert {name: value for name, value in made.items() if value} == {"none": 1}


def test_crowds_are_judged_apart(monkeypatch):
    monkeypatch.setattr(probe, "CROWDS", ((2, 0.5), (3, 0.3), (50, 0.2)))

    def some(boxes):
        return boxes[:0] if len(boxes) == 3 else boxes

    made = figures(monkeypatch, some)
    assert (made["f1_2"], made["f1_3"]) == (1, 1)
    assert made["f1_50"] == pytest.approx(2 / (1 + 4))
    assert made["f1"] == pytest.approx(2 * 5 / (5 + TRUE_BOXES))


def test_long_answers_are_decoded_together():
    asked, truth = probe._cases(SCENES, len(maker().objects))
    lengths = [len(truth[scene].get(kind, ())) for scene, kind in asked]
    assert lengths == sorted(lengths) == [0, 0, 0, 1, 1, 1, 2, 3]


def test_a_model_that_sees_things(monkeypatch):
    ghost = torch.tensor([[0.05, 0.95, 0.02, 0.02]])
    made = figures(monkeypatch, lambda boxes: torch.cat((boxes, ghost)))
    answered = TRUE_BOXES + QUESTIONS + 3
    assert made["none"] == 0
    assert (made["precision"], made["recall"]) == pytest.approx((TRUE_BOXES / answered, 1))
    assert made["f1"] == pytest.approx(2 * TRUE_BOXES / (answered + TRUE_BOXES))


def test_a_model_that_says_everything_twice(monkeypatch):
    made = figures(monkeypatch, lambda boxes: boxes.repeat(2, 1))
    assert (made["precision"], made["recall"]) == pytest.approx((0.5, 1))


def test_a_model_that_misses_all_but_the_first(monkeypatch):
    made = figures(monkeypatch, lambda boxes: boxes[:1])
    assert (made["precision"], made["recall"]) == pytest.approx((1, QUESTIONS / TRUE_BOXES))


@pytest.mark.parametrize(("shift", "iou"), [(0.2, 2 / 3), (0.3, 0.7 / 1.3), (0.36, 0)])
def test_boxes_match_from_an_overlap_of_one_half(monkeypatch, shift, iou):
    def beside(boxes):
        return boxes + boxes[:, [2, 3, 2, 3]] * torch.tensor([shift, 0, 0, 0])

    made = figures(monkeypatch, beside)
    assert made["iou"] == pytest.approx(iou, abs=1e-5)
    assert made["f1"] == float(iou > 0)


def test_the_best_overlap_is_matched_first():
    def along(*places):
        return torch.tensor([[x, 0.5, 0.2, 0.2] for x in places])

    # The first answer would do for both boxes (0.67, 0.90) and takes the better; the second is left with the other.
    assert probe._match(along(0.24, 0.21), along(0.2, 0.25)) == (2, pytest.approx(2 * 0.95 / 1.05))
    assert probe._match(along(0.24), along(0.2, 0.25)) == (1, pytest.approx(0.95 / 1.05))
