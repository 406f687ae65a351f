"""Checkpoints loaded and asked as users do, against transformers and against a loop of one request."""

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import photonlite
from photonlite import VisionModel
from photonlite.api.session import Session
from photonlite.cache.manager import CacheManager
from photonlite.engine.core import EngineCore
from photonlite.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    GrammarError,
    ImageError,
    NumericalError,
    SettingsError,
    UnsupportedSkillError,
)
from photonlite.models.fused_vision import FusedTransformer
from photonlite.models.paligemma.checkpoint import MASKS_NAME
from photonlite.models.paligemma.fused.decode import FusedDecode
from photonlite.models.paligemma.fused.prefill import FusedPrefill
from photonlite.models.paligemma.fused.text import FusedText
from photonlite.models.paligemma.images import cut_patches
from photonlite.models.paligemma.model import PaliGemmaModel
from photonlite.models.paligemma.prompts import PaliGemmaPrompts
from photonlite.request import IMAGE, Token
from photonlite.sequence import Sequence
from photonlite.verification import verify
from tests.compiling import fake_compilers
from tests.faults.resources import await_rest
from tests.models.paligemma.masks import random_weights
from tests.models.paligemma.tiny import CASES, END, IMAGE_ID, noise, reference_model, save
from tests.serving import GUARD, counters, on_thread

STEPS = 20
ENGINE: dict[str, Any] = {"page_size": 4, "max_context": 200, "max_batch": 4}
ALONE = {"depth": 1, "max_batch": 1, "prefix_caching": False}
IMAGES = [noise(0, (70, 50)), noise(1, (33, 130)), noise(2, (200, 190))]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def oracle(case: str) -> Any:
    return reference_model(case)


@pytest.fixture(scope="module")
def folder(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = save(oracle, tmp_path_factory.mktemp("checkpoint"))
    np.savez(made / MASKS_NAME, **random_weights())
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[VisionModel]:
    with photonlite.load(folder, device="cpu", dtype="float32", engine=ENGINE) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(reference_model("capped"), tmp_path_factory.mktemp("original"))


@pytest.fixture
def one(original: Path, tmp_path: Path) -> Path:
    """A copy of one checkpoint, for what does not depend on its sizes."""
    return shutil.copytree(original, tmp_path / "one")


def prompts_of(model: VisionModel) -> PaliGemmaPrompts:
    prompts = model._prompts
    assert isinstance(prompts, PaliGemmaPrompts)
    return prompts


def answer_of(oracle: Any, model: VisionModel, prompt: tuple[Token, ...], image: Image.Image) -> str:
    """Return what transformers answers to a prompt, greedily, in at most `STEPS` tokens."""
    prompts = prompts_of(model)
    spec = prompts._images
    grid, patch = spec.grid, spec.patch
    patches = torch.from_numpy(cut_patches(image, spec).patches).view(grid, grid, 3, patch, patch)
    pixels = patches.permute(2, 0, 3, 1, 4).reshape(1, 3, spec.side, -1).float() / 127.5 - 1
    ids = [index for one in prompt for index in ([IMAGE_ID] * spec.positions if one == IMAGE else [one.id])]
    given = torch.tensor([ids])
    with torch.no_grad():
        found = oracle.generate(
            input_ids=given, token_type_ids=torch.zeros_like(given), pixel_values=pixels,
            max_new_tokens=STEPS, do_sample=False, eos_token_id=END,
        )  # fmt: skip
    return prompts.decode(found[0, len(ids) :].tolist())


@pytest.mark.parametrize("images", [IMAGES[1:2], pytest.param(IMAGES, marks=pytest.mark.long)], ids=["one", "all"])
def test_answers_are_those_of_transformers(model: VisionModel, oracle: Any, images: list[Image.Image]) -> None:
    prompts, settings = prompts_of(model), {"max_tokens": STEPS}
    for image in images:
        asked = prompts.query("What is it?", reasoning=False, refs=())
        found = model.query(image, "What is it?", settings=settings)  # type: ignore[arg-type]
        assert found["answer"] == answer_of(oracle, model, asked, image)
        described = model.caption(image, "long", settings=settings)  # type: ignore[arg-type]
        assert described["caption"] == answer_of(oracle, model, prompts.caption("long"), image)


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


def test_an_image_is_encoded_once_for_a_typed_question_whose_grammar_comes_late(
    original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, waits, go_ahead = fake_compilers(monkeypatch, slow=True), threading.Event(), Session._encode_beside

    def watched(session: Session, *arguments: Any) -> None:
        go_ahead(session, *arguments)
        waits.set()

    monkeypatch.setattr(Session, "_encode_beside", watched)
    with photonlite.load(original, device="cpu", dtype="float32", engine=ENGINE) as model:
        asked = on_thread(lambda: model.query(noise(5, (40, 40)), "What?", schema=bool))
        assert waits.wait(GUARD)
        await_rest(model)
        made[0].finish()

        assert asked.result(GUARD)["answer"] in (True, False)
        assert counters(model)["steps"] == {"encode": 1, "prefill": 1, "decode": ANY, "run": ANY, "mixed": 0}


@pytest.mark.long
def test_only_the_same_prompt_about_the_same_image_is_not_computed_again(
    model: VisionModel, oracle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, other = noise(77, (40, 40)), noise(78, (40, 40))
    starts, settings = watch_starts(monkeypatch), {"max_tokens": STEPS}
    asks = [(image, "What is it?"), (image, "What is it?"), (image, "What is it now?"), (other, "What is it?")]

    answers = [model.query(*ask, settings=settings)["answer"] for ask in asks]  # type: ignore[arg-type]

    for (shown, question), answer in zip(asks, answers, strict=True):
        prompt = prompts_of(model).query(question, reasoning=False, refs=())
        assert answer == answer_of(oracle, model, prompt, shown)
    assert [start for start, _ in starts] == [0, starts[0][1].prompt_length - 1, 0, 0]


def test_branches_of_a_choice_reuse_the_question_and_are_part_of_the_answer(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with photonlite.load(one, device="cpu", dtype="float32", engine=ENGINE) as model:
        starts = watch_starts(monkeypatch)
        found = model.query(IMAGES[0], "What?", choices=["aab", "aac", "bba", "bbd"])

    (start, first), *branches = starts
    assert branches
    assert (start, first.prompt_block) == (0, first.prompt_length)
    for start, branch in branches:
        assert start == first.prompt_block - 1
        assert branch.prompt_block == first.prompt_block < branch.prompt_length
    assert sum(found["scores"].values()) == pytest.approx(1)


def tasks_of(count: int) -> list[dict[str, Any]]:
    """Return many kinds of questions; some share an image, or both image and prompt."""
    draw = np.random.default_rng(0)
    kinds: list[dict[str, Any]] = [
        {"skill": "detect", "image": IMAGES[0], "object": "mug"},
        {"skill": "detect", "image": IMAGES[0], "object": ["mug", "plate"]},
        {"skill": "detect", "image": IMAGES[1], "object": "mug ; plate", "tile": (1, 2)},
        {"skill": "segment", "image": IMAGES[1], "object": "mug"},
        {"skill": "caption", "image": IMAGES[2], "length": "short"},
        {"skill": "query", "image": IMAGES[2], "question": "What?"},
        {"skill": "query", "image": IMAGES[2], "question": "What?", "schema": {"type": "boolean"}},
        {"skill": "query", "image": IMAGES[2], "question": "What?", "choices": ["mug", "mugs", "plate"]},
    ]
    tasks = [dict(kinds[index]) for index in draw.permutation(np.arange(count) % len(kinds))]
    for number, task in enumerate(tasks):
        task["settings"] = {"max_tokens": 16, "max_objects": 2}
        if number % 3 == 0:
            task["settings"] |= {"temperature": 1.0, "seed": number}
    return tasks


@contextmanager
def held_until_submitted(count: int) -> Iterator[None]:
    """Let engines wait for so many requests before their first tick."""
    tick = EngineCore.tick

    def held(core: EngineCore) -> bool:
        if core.metrics.requests_submitted >= count:
            return tick(core)
        time.sleep(0.001)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineCore, "tick", held)
        yield


def answers_of(folder: Path, engine: dict[str, Any], seen: Counter[str], *, pipelined: bool = False) -> list[Any]:
    """Return the answers of a batch; where it is pipelined some requests are pre-empted."""
    held = 0
    if pipelined:
        # Requests about one image become ready together, as all wait when the engine starts. There are pages for the
        # longest request and hardly more.
        held = 2 * ENGINE["max_batch"]  # so many tasks of a batch are open at once
        engine = {"max_context": 80, "kv_cache_bytes": 22 * page_bytes(folder), "router": "greedy", "depth": 2} | engine
    with (
        held_until_submitted(held),
        photonlite.load(folder, device="cpu", dtype="float32", engine=ENGINE | engine) as loaded,
    ):
        answers = [rounded(one) for one in loaded.batch(tasks_of(16), errors="raise")]
        counters = loaded.metrics()["counters"]
        seen.update(preemptions=counters["preemptions"], hits=counters["prefix_hits"])
    return answers


@pytest.mark.long
def test_pipelined_equals_blocking_equals_one_at_a_time(folder: Path) -> None:
    seen = Counter[str]()
    pipelined = answers_of(folder, {}, seen, pipelined=True)
    assert pipelined == answers_of(folder, {"depth": 1}, seen)
    assert pipelined == answers_of(folder, ALONE, seen)
    assert min(seen["preemptions"], seen["hits"]) > 0, seen


@pytest.mark.long
@pytest.mark.parametrize("batching", ["turns", "mixed"])
def test_fused_parts_pipelined_equal_the_plain_model_one_at_a_time(
    one: Path, batching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((one / "config.json").read_text())
    config["text_config"]["sliding_window"] = 4096  # longer than the context
    (one / "config.json").write_text(json.dumps(config))
    np.savez(one / MASKS_NAME, **random_weights())
    wanted, seen, ran = answers_of(one, ALONE, Counter()), Counter[str](), Counter[type]()
    for part in (FusedPrefill, FusedDecode, FusedTransformer):
        monkeypatch.setattr(part, "__call__", counted(part, ran))
    monkeypatch.setattr(FusedText, "_obstacle", lambda text, needs: None)
    monkeypatch.setattr(PaliGemmaModel, "_encoder_obstacle", lambda model: None)

    assert answers_of(one, {"batching": batching}, seen, pipelined=True) == wanted

    assert min(seen["preemptions"], seen["hits"]) > 0, seen
    assert len(ran) == 3, ran


def counted(kind: type, ran: Counter[type]) -> Callable[..., Any]:
    """Return the call of a class, counted."""
    call = kind.__call__

    def watched(*arguments: Any) -> Any:
        ran[kind] += 1
        return call(*arguments)

    return watched


def page_bytes(folder: Path) -> int:
    text = photonlite.models.loading.resolve(folder).config.model.text  # type: ignore[attr-defined]
    return 2 * text.layers * ENGINE["page_size"] * text.kv_heads * text.head_dim * 4  # type: ignore[no-any-return]


def rounded(value: Any) -> Any:
    """Return a result with its numbers rounded: batches round them differently."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items() if name not in ("text", "path")}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.long
def test_boxes_and_outlines_lie_in_the_image(model: VisionModel) -> None:
    boxes: list[Any] = []
    for seed in range(6):
        settings: Any = {"temperature": 2.0, "seed": seed, "max_objects": 3}
        found = model.detect(IMAGES[2], "mug ; plate", settings=settings)["objects"]
        outlines = model.segment(IMAGES[1], "mug", settings=settings)["segments"]
        assert {box["label"] for box in found} <= {"mug", "plate"}
        assert {outline["label"] for outline in outlines} <= {"mug"}
        for outline in outlines:
            inner = outline["bbox"]
            assert all(inner["x_min"] - 1e-6 <= x <= inner["x_max"] + 1e-6 for x, _ in outline["polygon"])
            assert all(inner["y_min"] - 1e-6 <= y <= inner["y_max"] + 1e-6 for _, y in outline["polygon"])
            boxes.append(inner | {"score": outline["score"]})
        boxes += found
    assert len(boxes) > 1
    for box in boxes:
        assert 0 <= box["x_min"] < box["x_max"] <= 1
        assert 0 <= box["y_min"] < box["y_max"] <= 1
        assert 0 < box["score"] <= 1


def test_what_the_family_does_not_do_is_refused(one: Path) -> None:
    with photonlite.load(one, device="cpu", dtype="float32", engine=ENGINE) as model:
        assert model.skills == ("caption", "query", "detect")
        assert not model.reads_several
        with pytest.raises(UnsupportedSkillError, match=r"put vae-oid.npz beside the weights, or name it in PHOTON"):
            model.segment(IMAGES[0], "mug")
        with pytest.raises(UnsupportedSkillError, match="not trained for point"):
            model.point(IMAGES[0], "mug")
        with pytest.raises(UnsupportedSkillError, match="reasoning"):
            model.query(IMAGES[0], "Why?", reasoning=True)
        with pytest.raises(UnsupportedSkillError, match="spatial references"):
            model.query(IMAGES[0], "Why?", spatial_refs=[(0.5, 0.5)])
        with pytest.raises(SettingsError, match="caption length 'huge'"):
            model.caption(IMAGES[0], "huge")
        with pytest.raises(ImageError, match="there is no image"):
            model.query(None, "Why?")
        with pytest.raises(ImageError, match="one at a time"):
            model.query(IMAGES[:2], "Why?")
        with pytest.raises(GrammarError, match="boxes or points, but this checkpoint has no"):
            model.query(IMAGES[0], "Where?", schema=photonlite.Box)
        with pytest.raises(CapacityError, match="this model's context has 200"):
            model.query(IMAGES[0], "Why is it so? " * 40)


def test_encoding_an_image_ahead_costs_nothing_and_serves_every_question(one: Path) -> None:
    with photonlite.load(one, device="cpu", dtype="float32", engine=ENGINE) as model:
        encoded = model.encode_image(IMAGES[0])
        assert model.metrics()["counters"]["crops_encoded"] == 0
        settings: Any = {"max_tokens": 4}
        found, again = (model.caption(image, settings=settings) for image in (encoded, IMAGES[0]))
        assert found["caption"] == again["caption"]


def test_a_conversation_is_read_as_one_question(one: Path) -> None:
    with photonlite.load(one, device="cpu", dtype="float32", engine=ENGINE) as model:
        said = [{"role": "user", "content": [{"type": "image", "image": IMAGES[0]}, "What is it?"]}]

        settings: Any = {"max_tokens": 4}
        assert model.chat(said, settings=settings) == model.query(IMAGES[0], "What is it?", settings=settings)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(one: Path, missing: str) -> None:
    (one / missing).unlink()

    with pytest.raises((ConfigError, CheckpointError), match=f"has no {missing}"):
        photonlite.load(one, device="cpu")


def test_a_context_without_room_for_an_image_is_refused(one: Path) -> None:
    with pytest.raises(SettingsError, match="a context of 9 positions has no room for an image, which takes 9"):
        photonlite.load(one, device="cpu", engine={"max_context": 9})


def test_a_damaged_part_is_found_by_the_check(one: Path, tmp_path: Path) -> None:
    photonlite.load(one, device="cpu", engine=ENGINE, check=True).close()
    shutil.copytree(one, tmp_path / "copy")
    path = tmp_path / "copy" / "model.safetensors"
    tensors = load_file(path)
    tensors["language_model.model.layers.1.mlp.down_proj.weight"].view(-1)[-1] = torch.nan
    save_file(tensors, path, {"format": "pt"})

    with pytest.raises(NumericalError, match="the self-test of 'query' has failed"):
        photonlite.load(tmp_path / "copy", device="cpu", engine=ENGINE, check=True)


@pytest.mark.long
def test_verify_passes(one: Path) -> None:
    np.savez(one / MASKS_NAME, **random_weights())
    rows = list(verify(one, device="cpu", dtype="float32"))

    assert [row.check.split()[0] for row in rows[1:]] == ["preprocessing", "features", "logits", "greedy"]
    assert all(row.passed for row in rows), rows
