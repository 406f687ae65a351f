from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import CheckpointError, PromptError
from photonlite.images.decode import load_image
from photonlite.models.paligemma.checkpoint import MASKS_NAME, MASKS_VARIABLE, _masks_file, read_config, skills_of
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.images import SquareImages, cut_patches
from photonlite.models.paligemma.masks import MaskDecoder
from photonlite.models.paligemma.prompts import CONTROL_NAMES, PaliGemmaPrompts
from photonlite.models.shards import CONFIG_NAME, read_json
from photonlite.models.tokenizer import Tokenizer
from photonlite.request import IMAGE, Completion, SamplingSettings, Token
from photonlite.results import Metrics
from photonlite.results.rings import fill_mask
from photonlite.results.svg import path_to_rings
from photonlite.skills import detect, segment
from tests.models.paligemma.masks import decoded, random_weights
from tests.models.paligemma.tiny import (
    BOS,
    END,
    FIRST_CODE,
    FIRST_LOCATION,
    NEW_LINE,
    VOCAB,
    reference_model,
    save,
    tokenizer,
)

SETTINGS = SamplingSettings()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = save(reference_model("capped"), tmp_path_factory.mktemp("prompts"))
    np.savez(made / MASKS_NAME, **random_weights())
    return made


@pytest.fixture(scope="module")
def config(folder: Path) -> PaliGemmaConfig:
    return PaliGemmaConfig.from_dict(read_json(folder / CONFIG_NAME, ValueError))


@pytest.fixture(scope="module")
def words(folder: Path) -> Tokenizer:
    return Tokenizer(folder / "tokenizer.json", vocab_size=VOCAB, control_names=CONTROL_NAMES)


@pytest.fixture(scope="module")
def prompts(folder: Path, config: PaliGemmaConfig, words: Tokenizer) -> PaliGemmaPrompts:
    return PaliGemmaPrompts(config, words, MaskDecoder(folder / MASKS_NAME))


def spelled(words: Tokenizer, prompt: tuple[Token, ...]) -> str:
    assert prompt[:2] == (IMAGE, Token(BOS))
    assert prompt[-1] == Token(NEW_LINE)
    return words.decode(token.id for token in prompt[1:-1])


def test_prompts_are_the_public_ones(prompts: PaliGemmaPrompts, words: Tokenizer) -> None:
    def ask(question: str) -> tuple[Token, ...]:
        return prompts.query(question, reasoning=False, refs=())

    assert [spelled(words, prompts.caption(length)) for length in ("short", "normal", "long")] == [
        "caption en",
        "caption en",
        "describe en",
    ]
    assert spelled(words, ask("What is it?")) == "answer en What is it?"
    assert spelled(words, ask("OCR")) == "ocr"
    assert spelled(words, prompts.detect("mug ;red plate")) == "detect mug ; red plate"
    assert spelled(words, prompts.segment("mug", refs=())) == "segment mug"


@pytest.mark.parametrize("text", ["<loc0001>", "a <seg000>", "<image>", "<bos>"])
def test_text_never_becomes_a_place_an_image_or_a_control_token(prompts: PaliGemmaPrompts, text: str) -> None:
    try:
        ids = {token.id for token in prompts.detect(text)[2:]}
    except PromptError:
        return
    assert max(ids) < FIRST_LOCATION
    assert BOS not in ids


def test_a_subject_without_a_name_is_refused(prompts: PaliGemmaPrompts) -> None:
    with pytest.raises(PromptError, match="names nothing"):
        detect.build(prompts, " ; ;", settings=SETTINGS)


def places(*bins: int) -> list[Token]:
    """Return coordinates as the engine gives them."""
    return [Token(FIRST_LOCATION, (number / 1023,), 1.0, (1.0,)) for number in bins]


def completion(*tokens: Token) -> Completion:
    return Completion(tokens, "stop", Metrics(), (300, 100))


def test_boxes_are_y_before_x_in_1023rds_and_those_without_an_area_are_dropped(
    prompts: PaliGemmaPrompts, words: Tokenizer
) -> None:
    request = detect.build(prompts, "mug ; plate", settings=SETTINGS)
    more, last = words.spell(" plate ; "), words.spell(" mug")
    swapped, flat = places(700, 100, 200, 400), places(200, 400, 700, 400)
    tokens = [*places(102, 204, 511, 1023), *map(Token, more), *swapped, *map(Token, more), *flat, *map(Token, more)]
    tokens += [*places(0, 0, 1023, 1023), *map(Token, last), Token(END)]
    for token in tokens:
        request.grammar.accept(token)
    assert request.grammar.finish_reason == "stop"

    first, second = detect.finish(request, completion(*tokens))["objects"]

    assert [first[side] for side in ("x_min", "y_min", "x_max", "y_max")] == [204 / 1023, 102 / 1023, 1, 511 / 1023]
    assert [second[side] for side in ("x_min", "y_min", "x_max", "y_max")] == [0, 0, 1, 1]
    assert (first["label"], second["label"]) == ("plate", "mug")
    assert first["score"] == pytest.approx(1)


@pytest.mark.parametrize("turned", [1, 3, 6, 8])
def test_a_box_of_a_turned_image_maps_back_within_a_bin(prompts: PaliGemmaPrompts, tmp_path: Path, turned: int) -> None:
    # The image as it is shown: a white box on black. The file holds it turned, with the orientation in its header.
    shown = Image.new("RGB", (400, 150))
    shown.paste("white", (60, 30, 260, 120))
    back = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}.get(turned)
    exif = Image.Exif()
    exif[0x0112] = turned
    (shown if back is None else shown.transpose(back)).save(tmp_path / "turned.png", exif=exif)
    spec = SquareImages(448, 14)
    patches = cut_patches(load_image(tmp_path / "turned.png"), spec).patches.reshape(32, 32, 3, 14, 14)
    seen = patches.transpose(0, 3, 1, 4, 2).reshape(448, 448, 3)[..., 0] > 127

    rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    ends = (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1)
    answer = places(*(round(end / 448 * 1023) for end in ends))
    request = detect.build(prompts, "box", settings=SETTINGS)
    [found] = detect.finish(request, completion(*answer, *map(Token, prompts.spell(" box")), Token(END)))["objects"]

    wanted = {"x_min": 60 / 400, "y_min": 30 / 150, "x_max": 260 / 400, "y_max": 120 / 150}
    # A bin, and the pixel of the square to which an edge is rounded.
    assert all(abs(found[side] - value) <= 1 / 1023 + 1 / 448 for side, value in wanted.items())


def test_outlines_are_traced_around_the_masks_of_their_codes(prompts: PaliGemmaPrompts) -> None:
    request = segment.build(prompts, "mug", settings=SETTINGS)
    codes = [3 * number for number in range(16)]
    tokens = [*places(100, 200, 600, 800), *(Token(FIRST_CODE + code) for code in codes)]
    tokens += [*map(Token, prompts.spell(" mug")), Token(END)]
    for token in tokens:
        request.grammar.accept(token)

    found = segment.finish(prompts, request, completion(*tokens))

    mask = decoded(random_weights(), codes) > 0
    assert 0 < mask.sum() < mask.size
    assert found["segments"][0]["label"] == "mug"
    whole = {"x_min": 0.0, "y_min": 0.0, "x_max": 1.0, "y_max": 1.0}
    rings = path_to_rings(found["segments"][0]["path"], whole)
    drawn = fill_mask([[(64 * x, 64 * y) for x, y in ring] for ring in rings], 64, 64)
    assert (drawn != mask).mean() < 0.01


def test_a_tokenizer_without_all_places_is_refused(config: PaliGemmaConfig, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    text = tokenizer().to_str()
    path.write_text(text.replace("<loc0500>", "<lac0500>"))

    with pytest.raises(CheckpointError, match="lacks some of the 1024 tokens from <loc0000> on"):
        PaliGemmaPrompts(config, Tokenizer(path, control_names=CONTROL_NAMES), None)


def test_the_decoder_of_outlines_comes_from_the_folder_or_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = read_json(folder / CONFIG_NAME, ValueError)
    assert skills_of(read_config(folder, raw))[-1] == "segment"
    assert skills_of(read_config(tmp_path, raw)) == ("caption", "query", "detect")
    monkeypatch.setenv(MASKS_VARIABLE, str(folder / MASKS_NAME))
    assert read_config(tmp_path, raw).masks == str(folder / MASKS_NAME)
    assert _masks_file(str(folder / MASKS_NAME)) == folder / MASKS_NAME
    for name in ("nowhere.npz", "/nowhere/at/all.npz", "owner/name/folder/file.npz"):
        with pytest.raises(CheckpointError, match="which is no file here"):
            _masks_file(name)


def test_a_hub_file_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def fetch(repository: str, names: list[str]) -> Path:
        asked.append((repository, names))
        (tmp_path / "masks.npz").touch()
        return tmp_path

    monkeypatch.setattr("photonlite.models.paligemma.checkpoint.fetch", fetch)

    assert _masks_file("owner/name/masks.npz") == tmp_path / "masks.npz"
    assert asked == [("owner/name", ["masks.npz"])]
    with pytest.raises(CheckpointError, match=r"owner/name has no other\.npz"):
        _masks_file("owner/name/other.npz")
