"""Checkpoints loaded and asked as users do, against transformers and against a loop of one request."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import BaseModel
from safetensors.torch import load_file, save_file

import photonlite
from photonlite import VisionModel
from photonlite.cache.manager import CacheManager
from photonlite.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    ImageShapeError,
    NumericalError,
    PromptError,
    SettingsError,
    UnsupportedSkillError,
)
from photonlite.grammar.decoding.grammars import TextGrammar
from photonlite.models.qwen.images import cut_patches
from photonlite.models.qwen.prompts import QwenPrompts
from photonlite.models.qwen.vision import normalize_patches
from photonlite.request import IMAGE, Token
from photonlite.sequence import Sequence
from photonlite.skills.chat import read_messages
from tests.models.qwen.tiny import CASES, IDS, SPECIAL, reference_model, save

STEPS = 20
ENGINE: dict[str, Any] = {"page_size": 4, "max_context": 400, "max_batch": 4}
ENDS = (SPECIAL["<|im_end|>"], SPECIAL["<|endoftext|>"])


class Places(BaseModel):
    box: photonlite.Box
    point: photonlite.Point


def noise(seed: int, size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


IMAGES = [noise(0, (70, 50)), noise(1, (33, 130)), noise(2, (200, 190))]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def oracle(case: str) -> Any:
    return reference_model(case)


@pytest.fixture(scope="module")
def folder(case: str, oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(oracle, tmp_path_factory.mktemp(case), case)


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[VisionModel]:
    with photonlite.load(folder, device="cpu", dtype="float32", engine=ENGINE) as loaded:
        yield loaded


def prompts_of(model: VisionModel) -> QwenPrompts:
    prompts = model._prompts
    assert isinstance(prompts, QwenPrompts)
    return prompts


def answer_of(oracle: Any, model: VisionModel, prompt: Any, images: list[Image.Image], **settings: Any) -> str:
    """Return what transformers answers to a prompt, greedily, in at most `STEPS` tokens."""
    prompts = prompts_of(model)
    waiting = [cut_patches(image, prompts._images) for image in images]
    grids = [(1, *image.grid) for image in waiting]
    patches = [torch.from_numpy(image.patches) for image in waiting]
    ids: list[int] = []
    for token in prompt:
        if token == IMAGE:
            ids += [IDS["image_token_id"]] * (len(waiting.pop(0).patches) // 4)
        else:
            ids.append(token.id)
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == IDS["image_token_id"]).int()
    if images:
        inputs["pixel_values"] = normalize_patches(torch.cat(patches), prompts._images, 2)
        inputs["image_grid_thw"] = torch.tensor(grids)
    with torch.no_grad():
        found = oracle.generate(**inputs, **settings, max_new_tokens=STEPS, do_sample=False, eos_token_id=list(ENDS))
    return prompts.decode(found[0, len(ids) :].tolist())


@pytest.mark.parametrize("count", [0, *(pytest.param(some, marks=pytest.mark.long) for some in (1, 2)), 3])
def test_answers_are_those_of_transformers(model: VisionModel, oracle: Any, count: int) -> None:
    images = IMAGES[:count]
    prompt = prompts_of(model).query("What changed?", reasoning=False, refs=(), images=count)

    found = model.query(images, "What changed?", settings={"max_tokens": STEPS})

    assert found["answer"] == answer_of(oracle, model, prompt, images)


@pytest.mark.parametrize("count", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_repetition_penalty_is_that_of_transformers(model: VisionModel, oracle: Any, count: int) -> None:
    # A larger one makes random weights choose the id of images, which is no word of a prompt here.
    images, penalties = IMAGES[:count], (1.1 if count else 1.3, 0.8)
    prompt = prompts_of(model).query("What changed?", reasoning=False, refs=(), images=count)
    task = {"skill": "query", "image": images, "question": "What changed?"}

    settings = [{"max_tokens": STEPS, "repetition_penalty": penalty} for penalty in (1.0, *penalties)]
    plain, *found = model.batch([task | {"settings": one} for one in settings], errors="raise")

    wanted = [answer_of(oracle, model, prompt, images, repetition_penalty=penalty) for penalty in penalties]
    assert [one["answer"] for one in found] == wanted
    assert count or len({plain["answer"], *wanted}) > 1


def test_a_second_turn_computes_neither_the_first_one_nor_its_answer_again(
    model: VisionModel, oracle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"role": "user", "content": [{"type": "image", "image": IMAGES[0]}, "What is its number?"]}
    said = model.chat([first], regex="[0-9]{24}")
    turns = [first, {"role": "assistant", "content": said["answer"]}, {"role": "user", "content": "And another?"}]
    prompt = prompts_of(model).chat(read_messages(turns).turns)
    starts = watch_starts(monkeypatch)

    found = model.chat(turns, settings={"max_tokens": STEPS})

    assert found["answer"] == answer_of(oracle, model, prompt, [IMAGES[0]])
    [(start, sequence)] = starts
    known = sequence.prompt_length - len(prompt) + said_until(prompt)
    assert known - ENGINE["page_size"] < start <= known


def watch_starts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Sequence]]:
    """Return a list that gets each admitted sequence with its first position that was computed."""
    starts: list[tuple[int, Sequence]] = []
    admit = CacheManager.admit

    def watched(manager: CacheManager, sequence: Sequence, *spared: int, **how: bool) -> Any:
        admission = admit(manager, sequence, *spared, **how)
        if admission is not None:
            starts.append((admission[0], sequence))
        return admission

    monkeypatch.setattr(CacheManager, "admit", watched)
    return starts


def said_until(prompt: tuple[Token, ...]) -> int:
    """Return the place behind the last token of the first answer that was computed: the last one is not fed back."""
    ends = [place for place, token in enumerate(prompt) if token.id == ENDS[0]]
    return ends[-2] - 1


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": ["First", {"type": "image", "image": IMAGES[1]}, "and", {"type": "image", "image": IMAGES[0]}],
    },
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": ["And this?", {"type": "image", "image": IMAGES[2]}]},
]


def test_conversations_with_images_in_any_turn_are_answered_as_transformers_does(
    model: VisionModel, oracle: Any
) -> None:
    prompt = prompts_of(model).chat(read_messages(MESSAGES).turns)

    found = model.chat(MESSAGES, settings={"max_tokens": STEPS})

    assert found["answer"] == answer_of(oracle, model, prompt, [IMAGES[1], IMAGES[0], IMAGES[2]])


def tasks_of(count: int) -> list[dict[str, Any]]:
    """Return many kinds of questions about one image, several, and none; some share images."""
    draw = np.random.default_rng(0)
    kinds: list[dict[str, Any]] = [
        {"skill": "detect", "image": IMAGES[0], "object": "mug"},
        {"skill": "point", "image": IMAGES[1], "object": ["mug", "plate"]},
        {"skill": "caption", "image": IMAGES[2], "length": "short"},
        {"skill": "query", "image": IMAGES[:2], "question": "What changed?"},
        {"skill": "query", "image": IMAGES[::-1], "question": "What changed?"},
        {"skill": "query", "image": IMAGES[2], "question": "Where?", "schema": {"type": "object", "format": "box"}},
        {"skill": "query", "image": None, "question": "Why?", "choices": ["yes", "no"]},
        {"skill": "detect", "image": IMAGES[2], "object": "mug", "tile": (1, 2)},
    ]
    tasks = [dict(kinds[index]) for index in draw.permutation(np.arange(count) % len(kinds))]
    for number, task in enumerate(tasks):
        task["settings"] = {"max_tokens": 24, "max_objects": 2}
        if number % 3 == 0:
            task["settings"] |= {"temperature": 1.0, "seed": number}
        if number % 4 == 0:
            task["settings"] |= {"repetition_penalty": 1.5}
    return tasks


@pytest.mark.long
def test_pipelined_equals_blocking_equals_one_at_a_time(folder: Path) -> None:
    tasks = tasks_of(24)
    short = {**ENGINE, "kv_cache_bytes": None}
    answers = []
    for engine in ({"depth": 2}, {"depth": 1}, {"depth": 1, "max_batch": 1, "prefix_caching": False}):
        with photonlite.load(folder, device="cpu", dtype="float32", engine=short | engine) as loaded:
            found = loaded.batch(tasks, errors="raise")
            answers.append([rounded(one) for one in found])
    assert answers[0] == answers[1]
    assert answers[0] == answers[2]


def rounded(value: Any) -> Any:
    """Return a result with its numbers rounded: batches round them differently."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items() if name != "text" or "answer" not in value}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.long
def test_boxes_points_and_typed_places_lie_in_the_image(model: VisionModel) -> None:
    boxes, points = [], []
    for seed in range(6):
        settings: Any = {"temperature": 3.0, "seed": seed, "max_objects": 3, "max_tokens": 200}
        boxes += model.detect(IMAGES[2], ["mug", "plate"], settings=settings)["objects"]
        points += model.point(IMAGES[1], "mug", settings=settings)["points"]
        typed = model.query(IMAGES[0], "Where?", schema=Places, settings=settings)["answer"]
        boxes.append({side: getattr(typed.box, side) for side in ("x_min", "y_min", "x_max", "y_max", "score")})
        points.append({side: getattr(typed.point, side) for side in ("x", "y", "score")})

    assert len(points) > 6
    assert len(boxes) > 6
    for box in boxes:
        assert 0 <= box["x_min"] <= box["x_max"] <= 1
        assert 0 <= box["y_min"] <= box["y_max"] <= 1
    assert all(0 <= point[axis] <= 1 for point in points for axis in "xy")
    assert all(0 < item["score"] <= 1 for item in (*boxes, *points))


@pytest.mark.long
def test_a_picture_that_cannot_be_resized_fails_its_own_call_alone(model: VisionModel) -> None:
    strip = noise(0, (1, 201))
    tasks = [
        {"skill": "caption", "image": IMAGES[0]},
        {"skill": "caption", "image": strip},
        {"skill": "detect", "image": strip, "object": "mug"},
        {"skill": "query", "image": [IMAGES[0], strip], "question": "Why?", "schema": bool},
    ]
    alone = model.caption(IMAGES[0])

    good, *bad = model.batch(tasks)

    assert good["caption"] == alone["caption"]
    assert [type(error) for error in bad] == [ImageShapeError] * 3
    assert "200 to 1" in str(bad[0])


def test_more_images_than_the_context_holds_are_refused_with_the_numbers(model: VisionModel) -> None:
    with pytest.raises(
        CapacityError, match=r"for 12 images .* this model's context has 400: give fewer or smaller images"
    ):
        model.query([IMAGES[2]] * 12, "What changed?")
    with pytest.raises(
        CapacityError,
        match=r"needs \d+ positions \(3 for 1 image .*, but this model's context has 400: shorten the text by",
    ):
        model.query(IMAGES[2], "What? " * 200)


@pytest.mark.parametrize("case", ["3"], indirect=True)
def test_conversations_are_among_the_tasks_of_a_batch(model: VisionModel) -> None:
    turns = [*MESSAGES[:2], {"role": "assistant", "content": None}, MESSAGES[3]]
    settings: Any = {"max_tokens": 4}
    wanted = [model.chat(MESSAGES, settings=settings), model.chat(turns, settings=settings)]

    tasks = [{"skill": "chat", "messages": asked, "settings": settings} for asked in (MESSAGES, turns, MESSAGES[:3])]
    *found, refused = model.batch(tasks)

    assert [one["answer"] for one in found] == [one["answer"] for one in wanted]
    assert isinstance(refused, PromptError)
    assert "task 2: the last message is the assistant's" in str(refused)


def test_what_the_family_does_not_do_is_refused(model: VisionModel) -> None:
    with pytest.raises(UnsupportedSkillError, match="segment"):
        model.segment(IMAGES[0], "mug")
    with pytest.raises(UnsupportedSkillError, match="reasoning"):
        model.query(IMAGES[0], "Why?", reasoning=True)
    with pytest.raises(UnsupportedSkillError, match="spatial references"):
        model.point(IMAGES[0], "mug", spatial_refs=[(0.5, 0.5)])
    with pytest.raises(SettingsError, match="caption length 'huge'"):
        model.caption(IMAGES[0], "huge")


def with_generation(folder: Path, copy: Path, **raw: Any) -> Path:
    shutil.copytree(folder, copy)
    (copy / "generation_config.json").write_text(json.dumps(raw))
    return copy


@pytest.mark.parametrize("case", ["3"], indirect=True)
def test_every_id_that_the_files_name_ends_an_answer(folder: Path, tmp_path: Path) -> None:
    copy = with_generation(folder, tmp_path / "copy", eos_token_id=[*ENDS, 999, *range(300)])
    with photonlite.load(copy, device="cpu", dtype="float32", engine=ENGINE) as loaded:
        vocabulary = prompts_of(loaded).vocabulary
        found = loaded.query(None, "Why?")

    assert (vocabulary.end, *vocabulary.other_ends) == (*ENDS, *range(300))
    for end in ENDS:
        grammar = TextGrammar(vocabulary, 9)
        grammar.accept(Token(end))
        assert grammar.finish_reason == "stop"
    assert (found["answer"], found.finish_reason, found.metrics.output_tokens) == ("", "stop", 1)


@pytest.mark.long
@pytest.mark.parametrize("case", ["3"], indirect=True)
def test_answers_in_words_begin_with_the_checkpoints_settings_where_that_was_asked_for(
    folder: Path, tmp_path: Path, model: VisionModel
) -> None:
    makers = {"temperature": 2.0, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2}
    copy = with_generation(folder, tmp_path / "copy", do_sample=True, **makers)
    image, short, asked = IMAGES[0], {"max_tokens": 12, "seed": 3}, [{"role": "user", "content": "Why?"}]
    with (
        photonlite.load(copy, device="cpu", dtype="float32", engine=ENGINE) as greedy,
        photonlite.load(copy, device="cpu", dtype="float32", engine=ENGINE, sampling="checkpoint") as loaded,
    ):
        assert greedy.sampling_defaults == loaded.sampling_defaults == makers
        for ask in (
            lambda one, more: one.caption(image, settings=short | more)["caption"],
            lambda one, more: one.query(image, "Why?", settings=short | more)["answer"],
            lambda one, more: one.chat(asked, settings=short | more)["answer"],
        ):
            plain, sampled = ask(model, {}), ask(model, makers)
            assert ask(greedy, {}) == plain
            assert ask(loaded, {}) == sampled != plain
            assert ask(loaded, {"temperature": 0, "repetition_penalty": 1}) == plain
        for typed in ({"choices": ["a", "b"]}, {"regex": "[a-f]{6}"}):
            wanted = model.query(image, "Why?", settings=short, **typed)["answer"]
            assert loaded.query(image, "Why?", settings=short, **typed)["answer"] == wanted
        assert rounded(loaded.detect(image, "mug", short)) == rounded(model.detect(image, "mug", short))
    with pytest.raises(SettingsError, match="sampling is 'makers': it must be 'greedy' or 'checkpoint'"):
        photonlite.load(copy, sampling="makers")  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["preprocessor_config.json", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(folder: Path, tmp_path: Path, missing: str) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / missing).unlink()

    with pytest.raises((ConfigError, CheckpointError), match=f"has no {missing}"):
        photonlite.load(tmp_path / "copy", device="cpu")


@pytest.mark.parametrize("case", ["3"], indirect=True)
def test_a_damaged_part_is_found_by_the_check(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    photonlite.load(folder, device="cpu", engine=ENGINE, check=True).close()
    path = tmp_path / "copy" / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "down_proj" in name and "visual" not in name)
    tensors[name].view(-1)[-1] = torch.nan
    save_file(tensors, path, {"format": "pt"})

    with pytest.raises(NumericalError, match="the self-test of 'query' has failed"):
        photonlite.load(tmp_path / "copy", device="cpu", engine=ENGINE, check=True)
