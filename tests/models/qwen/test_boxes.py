import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from photonlite.errors import PromptError, UnsupportedSkillError
from photonlite.grammar.decoding.items import Item, ItemsGrammar
from photonlite.grammar.prompts import PlaceKind
from photonlite.models.qwen.boxes import ItemSpelling, bounds, question
from photonlite.models.qwen.config import VERSIONS
from photonlite.models.qwen.images import ImageSettings, smart_size
from photonlite.models.tokenizer import Tokenizer
from photonlite.request import Token
from photonlite.skills.base import listed_box
from tests.models.qwen.tiny import SPECIAL, tokenizer

END = SPECIAL["<|im_end|>"]
OLDER, NEWER = VERSIONS["qwen2_5_vl"], VERSIONS["qwen3_vl"]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokenizer().to_str())
    return Tokenizer(path, controls_to=320)


@pytest.mark.parametrize("label", ["mug", 'a "blue" one\\', "2 mugs, 33", "Tasse für Öl 数"])
@pytest.mark.parametrize(("kind", "key", "count"), [("detect", "bbox_2d", 4), ("point", "point_2d", 2)])
def test_every_list_is_written_as_the_model_was_trained_to_and_with_its_own_tokens(
    tokens: Tokenizer, kind: PlaceKind, key: str, count: int, label: str
) -> None:
    form = ItemSpelling(tokens, END).format(kind, label)
    limits = bounds(kind, NEWER, (640, 480))
    draw = np.random.default_rng(0)
    for items in (0, 1, 2, 5):
        found = [[int(n) for n in draw.integers(0, 1001, count)] for _ in range(items)]
        lines = [f'\t{{"{key}": {numbers}, "label": {json.dumps(label, ensure_ascii=False)}}}' for numbers in found]
        text = "```json\n[\n" + ",\n".join(lines) + "\n]\n```" if lines else "```json\n[]\n```"
        grammar = ItemsGrammar(form, limits, form.budget(6, limits), max_items=6)
        answer = [Token(index) for index in (*tokens.spell(text), END)]

        for token in answer:
            grammar.accept(token)  # raises where it differs

        assert grammar.finish_reason == "stop"
        assert [list(item.numbers) for item in grammar.read(answer)] == found


@pytest.mark.parametrize("label", ["cafe\u0301", "\u212b unit", "a\u0323\u0307"])
def test_a_label_is_written_as_the_question_spells_it(tokens: Tokenizer, label: str) -> None:
    composed = unicodedata.normalize("NFC", label)
    assert composed != label
    one, other = (ItemSpelling(tokens, END).format("detect", text) for text in (label, composed))
    assert (one.more, one.last) == (other.more, other.last)
    assert tokens.encode(label) == tokens.encode(composed)


def test_a_label_that_is_not_unicode_is_refused(tokens: Tokenizer) -> None:
    with pytest.raises(PromptError, match="not valid Unicode"):
        ItemSpelling(tokens, END).format("detect", "\ud800")


def test_bounds_are_those_of_the_generation() -> None:
    assert bounds("detect", NEWER, (640, 480)) == (1000, 1000, 1000, 1000)
    assert bounds("detect", OLDER, (644, 476)) == (644, 476, 644, 476)
    assert bounds("point", OLDER, (644, 476)) == (644, 476)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=list(VERSIONS))
@pytest.mark.parametrize("size", [(640, 480), (500, 1333), (3000, 200), (97, 31)])
def test_a_known_box_comes_back_to_within_one_step(version: object, size: tuple[int, int]) -> None:
    width, height = size
    settings = ImageSettings(14, 2, 3136, 501760, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    tall, wide = smart_size(height, width, settings)
    limits = bounds("detect", version, (wide, tall))  # type: ignore[arg-type]
    known = (0.1, 0.25, 0.77, 0.9)

    written = tuple(round(share * limit) for share, limit in zip(known, limits, strict=True))
    found = listed_box(Item(written, 1.0), limits)

    assert found is not None
    assert list(found) == ["x_min", "y_min", "x_max", "y_max"]
    assert all(
        abs(value - share) <= 1 / limit for value, share, limit in zip(found.values(), known, limits, strict=True)
    )


def test_swapped_corners_are_put_in_order() -> None:
    assert listed_box(Item((900, 50, 100, 250), 1.0), (1000, 500, 1000, 500)) == {
        "x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.5
    }  # fmt: skip


@pytest.mark.parametrize("numbers", [(5, 1, 5, 9), (1, 5, 9, 5), (0, 0, 0, 0)])
def test_a_box_without_an_area_is_none(numbers: tuple[int, ...]) -> None:
    assert listed_box(Item(numbers, 1.0), (10, 10, 10, 10)) is None


@pytest.mark.parametrize("kind", ["detect", "point"])
@pytest.mark.parametrize("version", VERSIONS.values(), ids=list(VERSIONS))
def test_the_subject_is_asked_for_as_it_is(kind: PlaceKind, version: object) -> None:
    text = question(kind, "red mug", version)  # type: ignore[arg-type]

    assert "red mug" in text
    assert "JSON" in text
    assert ("bbox" if kind == "detect" else "point") in text


def test_a_tokenizer_that_joins_digits_is_refused(tmp_path: Path) -> None:
    raw = json.loads(tokenizer().to_str())
    raw["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{N}+|[^\p{N}]+"
    raw["model"]["vocab"]["33"] = raw["model"]["vocab"].pop("unused 299")
    raw["model"]["merges"].append(["3", "3"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))

    with pytest.raises(UnsupportedSkillError, match="does not spell 3 as a token of its own"):
        ItemSpelling(Tokenizer(tmp_path / "tokenizer.json", controls_to=320), END)
