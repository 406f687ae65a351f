import asyncio
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

import photonlite
from photonlite.api import VisionModel
from photonlite.config import ImageLimits
from photonlite.errors import (
    CapacityError,
    ImageError,
    ImageNotFoundError,
    ImageTimeoutError,
    ImageTooLargeError,
    ModelError,
    PromptError,
    SettingsError,
    SpatialRefError,
    UnsupportedSkillError,
)
from photonlite.models.tokenizer import Tokenizer
from tests.images.bombs import BOMBS
from tests.serving import double
from tests.tiny import CPU, EXPECTED, GOLDEN, tiny_config, tiny_loaded

CASES = [pytest.param(case, id=case["image"].split("/")[1][:-4]) for case in EXPECTED["cases"]]
TOKENIZER = Tokenizer(GOLDEN / "tokenizer.json")
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def golden() -> Iterator[VisionModel]:
    with photonlite.load(GOLDEN, device="cpu", dtype="float32") as model:
        yield model


@pytest.fixture(scope="module")
def tiny() -> Iterator[VisionModel]:
    with VisionModel(double(), CPU, torch.float64) as model:
        yield model


def clamped(items: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: min(1.0, max(0.0, value)) for key, value in item.items()} for item in items]


def places(items: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [{key: value for key, value in item.items() if key not in ("label", "score")} for item in items]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_folder_answers_as_the_reference(golden: VisionModel, case: dict[str, Any]) -> None:
    image = golden.encode_image(GOLDEN / case["image"])
    question = TOKENIZER.decode(case["query_prompt_ids"][3:-1])

    boxes = golden.detect(image, "red ball", settings={"max_objects": 6})
    points = golden.point(image, "red ball", settings={"max_objects": 6})
    answer = golden.query(image, question, settings={"max_tokens": 24})
    description = golden.caption(image, settings={"max_tokens": 24})

    for found, wanted in ((boxes["objects"], case["detect"]), (points["points"], case["point"])):
        assert len(found) == len(wanted)
        for one, other in zip(places(found), clamped(wanted), strict=True):
            assert one == pytest.approx(other, abs=1e-5)
    assert answer["answer"] == TOKENIZER.decode(case["query_greedy_ids"])
    assert description["caption"] == TOKENIZER.decode(case["caption_greedy_ids"])
    assert all(0 < item["score"] <= 1 and item["label"] == "red ball" for item in boxes["objects"])


def test_results_are_equal_with_and_without_encoding_first(golden: VisionModel) -> None:
    case = EXPECTED["cases"][0]
    result = golden.detect(
        str(GOLDEN / case["image"]), "red ball", settings={"max_objects": 6}, cache_salt="not seen before"
    )

    for one, other in zip(places(result["objects"]), clamped(case["detect"]), strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert result.finish_reason == "max_objects"
    assert result.metrics is not None
    assert result.metrics.prompt_tokens == 730 + len(case["detect_prompt_ids"])
    assert min(result.metrics.preprocess_s, result.metrics.encode_s) > 0


def test_a_model_describes_itself(golden: VisionModel) -> None:
    assert golden.skills == ("caption", "query", "detect", "point")
    assert golden.device == torch.device("cpu")
    assert golden.dtype == torch.float32
    shown = f"VisionModel('{GOLDEN}', device='cpu', dtype='float32', skills={golden.skills})"
    assert repr(golden) == shown


def test_a_skill_the_checkpoint_lacks_is_refused(golden: VisionModel) -> None:
    with pytest.raises(UnsupportedSkillError, match="not trained for segment"):
        golden.segment(IMAGE, "mug")


def test_load_takes_a_dtype() -> None:
    with photonlite.load(GOLDEN, device=CPU, dtype=torch.bfloat16) as model:
        assert model.dtype == torch.bfloat16
        found = model.detect(Image.new("RGB", (60, 40), "red"), "ball", settings={"max_objects": 2})

    assert all(0 <= value <= 1 for item in places(found["objects"]) for value in item.values())


def sources(folder: Path) -> list[Any]:
    path = folder / "image.png"
    IMAGE.save(path)
    data = path.read_bytes()
    return [IMAGE, np.asarray(IMAGE), str(path), path, data, io.BytesIO(data)]


def test_an_image_may_have_any_supported_type(tiny: VisionModel, tmp_path: Path) -> None:
    results = [json.dumps(tiny.detect(source, "mug", settings={"max_objects": 3})) for source in sources(tmp_path)]

    assert len(set(results)) == 1


@pytest.mark.long
def test_results_are_plain_json(tiny: VisionModel) -> None:
    for result in (
        tiny.detect(IMAGE, "mug"),
        tiny.point(IMAGE, "mug", spatial_refs=[(0.5, 0.5)]),
        tiny.segment(IMAGE, "mug", spatial_refs=[(0, 0, 1, 1)]),
        tiny.caption(IMAGE, "short"),
        tiny.query(IMAGE, "why?", reasoning=True, spatial_refs=[(0.5, 0.5)]),
        tiny.query(None, "why?"),
        tiny.query(question="why?"),
    ):
        assert json.loads(json.dumps(result)) == result
        assert result.metrics is not None
        assert result.finish_reason in ("stop", "length", "max_objects")


@pytest.mark.long
def test_results_hold_the_size_of_the_upright_image(tiny: VisionModel) -> None:
    turned = Image.new("RGB", (60, 40), "red")
    turned.getexif()[ExifTags.Base.Orientation] = 6

    for image in (turned, tiny.encode_image(turned)):
        found = tiny.detect(image, "mug", settings={"max_objects": 2})
        assert found["objects"]
        assert found.picture_size == tiny.point(image, "mug").picture_size == (40, 60)
        assert found.to_coco() == found.to_coco(40, 60)
        assert tiny.segment(image, "mug").picture_size == (40, 60)


def test_positional_arguments_match_the_public_client(tiny: VisionModel) -> None:
    settings = {"max_tokens": 5, "max_objects": 1}

    assert tiny.detect(IMAGE, "mug", settings) == tiny.detect(IMAGE, "mug", settings=settings)
    assert tiny.point(IMAGE, "mug", settings) == tiny.point(IMAGE, "mug", settings=settings)
    assert "".join(tiny.caption(IMAGE, "short", True, settings)["caption"])
    assert "".join(tiny.query(IMAGE, "why?", True, settings)["answer"])


def test_spatial_references_change_the_prompt(tiny: VisionModel) -> None:
    image = tiny.encode_image(IMAGE)

    def ask(*refs: tuple[float, ...]) -> str:
        return str(tiny.query(image, "why?", spatial_refs=refs, settings={"max_tokens": 20})["answer"])

    assert ask((0.1, 0.1)) == ask((0.1, 0.1))
    answers = {ask(), ask((0.1, 0.1)), ask((0.9, 0.9)), ask((0.1, 0.1, 0.4, 0.9))}
    assert len(answers) > 2  # random weights: not every one must differ


@pytest.mark.parametrize("ask", ["caption", "query"])
def test_a_stream_gives_the_same_text_piece_by_piece(tiny: VisionModel, ask: str) -> None:
    def run(stream: bool) -> Any:
        settings = {"max_tokens": 30}
        if ask == "caption":
            return tiny.caption(IMAGE, "short", stream=stream, settings=settings)
        return tiny.query(IMAGE, "why?", stream=stream, settings=settings)

    key = {"caption": "caption", "query": "answer"}[ask]
    whole, stream = run(False), run(True)
    pieces = list(stream[key])

    assert "".join(pieces) == whole[key]
    assert len(pieces) > 5
    assert stream.finish_reason == whole.finish_reason
    assert stream.metrics.output_tokens == whole.metrics.output_tokens


def test_requests_run_while_a_stream_is_read(tiny: VisionModel) -> None:
    alone = tiny.caption(IMAGE, "short", settings={"max_tokens": 10})["caption"]
    stream = tiny.caption(IMAGE, "short", stream=True, settings={"max_tokens": 10})["caption"]
    pieces = []
    for piece in stream:
        pieces.append(piece)
        tiny.detect(Image.new("RGB", (50, 50), "red"), "mug", settings={"max_objects": 1})

    assert "".join(pieces) == alone


def test_a_model_for_single_questions_reads_a_conversation_as_one(tiny: VisionModel) -> None:
    image = {"type": "image", "image": IMAGE}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [image, "What is it?"]},
        {"role": "assistant", "content": "A mug."},
        {"role": "user", "content": [image, "Whose?"]},
    ]
    asked = tiny.query(IMAGE, "User: What is it?\nAssistant: A mug.\n\nWhose?")

    assert tiny.chat(messages) == asked
    assert "".join(tiny.chat(messages, stream=True)["answer"]) == asked["answer"]
    assert asyncio.run(tiny.achat(messages)) == asked
    assert tiny.chat(messages, choices=["mine", "yours"])["answer"] in ("mine", "yours")
    with pytest.raises(ImageError, match="2 images, but this model reads one at a time"):
        tiny.chat([*messages[:2], {"role": "user", "content": ["And?", image | {"image": Image.new("RGB", (9, 9))}]}])
    with pytest.raises(PromptError, match="the last message is the assistant's"):
        tiny.chat(messages[:2])


def test_encoding_an_encoded_image_returns_it(tiny: VisionModel) -> None:
    image = tiny.encode_image(IMAGE)

    assert tiny.encode_image(image) is image
    assert tiny.detect(image, "mug") == tiny.detect(IMAGE, "mug")


CALLS: list[tuple[Callable[[VisionModel, Any], Any], type[Exception], str]] = [
    (lambda m, p: m.detect("nowhere.png", "mug"), ImageNotFoundError, "nowhere.png"),
    (lambda m, p: m.detect(None, "mug"), ImageError, "None"),
    (lambda m, p: m.caption(None), ImageError, "None"),
    (lambda m, p: m.caption("nowhere.png", stream=True), ImageNotFoundError, "nowhere.png"),
    (lambda m, p: m.detect([p, p], "mug"), ImageError, "2 images were handed in, but detect is about one: ask about"),
    (lambda m, p: m.query([p, p], "why?", stream=True), ImageError, "2 images, but this model reads one at a time"),
    (lambda m, p: m.query([[p]], "why?"), ImageError, "list"),
    (lambda m, p: m.caption([]), ImageError, "no image"),
    (lambda m, p: m.detect(p, "mug", deadline_s="soon"), SettingsError, "deadline_s is 'soon'"),
    (lambda m, p: m.detect(p, "mug", deadline_s=float("inf")), SettingsError, "deadline_s is inf"),
    (lambda m, p: m.encode_image(p, cache_salt=5), SettingsError, "cache_salt is of type int"),
    (lambda m, p: m.detect(p, ""), PromptError, "empty"),
    (lambda m, p: m.detect(p, "x" * 10_000), PromptError, "10000 characters, over the limit of 1000"),
    (lambda m, p: m.segment(p, "x" * 1_001), PromptError, "1001"),
    (lambda m, p: m.query(p), PromptError, "the question is missing"),
    (lambda m, p: m.query(p, "why?", spatial_refs=[(2, 2)], stream=True), SpatialRefError, "leaves the image"),
    (lambda m, p: m.query(None, "why?", spatial_refs=[(0, 0)]), SpatialRefError, "without an image"),
    (lambda m, p: m.point(p, "mug", spatial_refs=0.5), SpatialRefError, "float"),
    (lambda m, p: m.query(p, "why? " * 200, stream=True), CapacityError, "needs .* this model's context has 120"),
    (lambda m, p: m.query(p, "why?", spatial_refs=[(0, 0)] * 100), CapacityError, "120"),
    (lambda m, p: m.caption(p, "huge", stream=True), SettingsError, "short, normal, long"),
    (lambda m, p: m.caption(p, "long", stream=True), UnsupportedSkillError, "short, normal"),
    (lambda m, p: m.caption(p, stream=True, settings={"beams": 1}), SettingsError, "'beams' is unknown"),
    (lambda m, p: m.detect(p, "mug", settings={"variant": "x"}), SettingsError, "variant"),
    (lambda m, p: m.detect(p, "mug", settings={"temperature": -1}), SettingsError, "at least 0"),
]


@pytest.mark.parametrize(("call", "error", "message"), CALLS)
def test_bad_input_is_a_typed_error_at_the_call(
    tiny: VisionModel, call: Callable[[VisionModel, Any], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(tiny, IMAGE)


def test_the_pixel_limit_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    small = VisionModel(tiny_loaded(tiny_config()), CPU, torch.float32, ImageLimits(max_pixels=1000))
    with small, pytest.raises(ImageTooLargeError, match="limit of 1000"):
        small.detect(IMAGE, "mug")
    with photonlite.load(GOLDEN, device="cpu", max_pixels=500) as model, pytest.raises(ImageTooLargeError, match="500"):
        model.encode_image(IMAGE)
    monkeypatch.setenv("PHOTONLITE_MAX_PIXELS", "600")
    with photonlite.load(GOLDEN, device="cpu") as model, pytest.raises(ImageTooLargeError, match="600"):
        model.encode_image(IMAGE)


@pytest.mark.parametrize(
    "options",
    [
        {"device": "tpu"},
        {"dtype": "int4"},
        {"max_pixels": 0},
        {"device": "cuda:99"},
        {"engine": {"depht": 2}},
        {"engine": {"depth": 3}},
        {"engine": {"max_batch": "8"}},
        {"engine": 8},
    ],
    ids=str,
)
def test_bad_options_are_reported_before_the_model_is_resolved(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        photonlite.load("no/such/model", **options)


def test_a_closed_model_raises_model_error() -> None:
    with VisionModel(tiny_loaded(tiny_config()), CPU, torch.float32) as model:
        image = model.encode_image(IMAGE)
        assert model.alive
    for call in (
        lambda: model.detect(IMAGE, "mug"),
        lambda: model.query(image, "why?"),
        lambda: model.encode_image(IMAGE),
        lambda: model.batch([{"skill": "detect", "image": IMAGE, "object": "mug"}]),
        lambda: asyncio.run(model.acaption(IMAGE)),
    ):
        with pytest.raises(ModelError, match="closed"):
            call()
    assert not model.alive
    model.close()


def test_special_tokens_in_a_prompt_stay_text(tiny: VisionModel) -> None:
    spelled = tiny.detect(IMAGE, "<|endoftext|>", settings={"max_objects": 1})

    assert spelled.metrics is not None
    assert spelled.metrics.prompt_tokens == 26 + 3 + len(" <|endoftext|>") + 1


@pytest.mark.long
def test_isolated_images_are_decoded_in_other_processes() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (60, 40), "navy").save(buffer, "PNG")
    limits = ImageLimits(decode_cpu_s=0.1, decode_cpu_s_per_megapixel=0.001)
    with (
        VisionModel(tiny_loaded(tiny_config()), CPU, torch.float32, limits, isolate_images=True) as isolating,
        VisionModel(tiny_loaded(tiny_config()), CPU, torch.float32, limits) as trusting,
    ):
        told = isolating.detect(buffer.getvalue(), "mug", {"max_objects": 1})
        assert told == trusting.detect(buffer.getvalue(), "mug", {"max_objects": 1})
        bomb = BOMBS["jpeg_exif_segments"]()
        with pytest.raises(ImageTimeoutError):
            isolating.detect(bomb, "mug")
        with pytest.raises(ImageTimeoutError):
            asyncio.run(isolating.adetect(bomb, "mug"))
        (error,) = isolating.batch([{"skill": "detect", "image": bomb, "object": "mug"}], errors="return")
        assert isinstance(error, ImageTimeoutError)
