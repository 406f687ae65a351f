import dataclasses
from typing import Any

import numpy as np
import pytest

from photonlite.errors import PromptError, SettingsError, SpatialRefError, UnsupportedSkillError
from photonlite.models.moondream.config import MoondreamConfig, TokenizerConfig
from photonlite.models.moondream.prompts import MoondreamPrompts, check_reference
from photonlite.request import Token
from tests.models.moondream.golden import loaded
from tests.tiny import EXPECTED, tiny_config, tiny_prompts

CASE = EXPECTED["cases"][0]
PROMPTS = loaded().prompts


def ids(prompt: tuple[Token, ...]) -> list[int]:
    return [token.id for token in prompt]


def values(prompt: tuple[Token, ...]) -> list[tuple[float, ...]]:
    return [token.values for token in prompt if token.values]


def test_prompts_are_those_of_the_reference() -> None:
    question = PROMPTS.decode(CASE["query_prompt_ids"][3:-1])

    assert ids(PROMPTS.caption("normal")) == CASE["caption_prompt_ids"]
    assert ids(PROMPTS.query(question, reasoning=False, refs=())) == CASE["query_prompt_ids"]
    assert ids(PROMPTS.detect("red ball")) == CASE["detect_prompt_ids"]
    assert ids(PROMPTS.point("red ball", refs=())) == CASE["point_prompt_ids"]


def test_spatial_references_come_before_the_question() -> None:
    question = PROMPTS.decode(CASE["spatial_refs_prompt_ids"][8:-1])

    prompt = PROMPTS.query(question, reasoning=False, refs=CASE["spatial_refs"])

    assert ids(prompt) == CASE["spatial_refs_prompt_ids"]
    assert np.concatenate(values(prompt)).tolist() == pytest.approx([0.25, 0.75, 0.3, 0.55, 0.4, 0.7])


def test_detect_and_point_put_a_space_before_the_object_and_query_and_segment_do_not() -> None:
    prompts = tiny_prompts(tiny_config())
    space = 230

    assert ids(prompts.detect("a"))[3] == ids(prompts.point("a", refs=()))[3] == space
    assert ids(prompts.segment("a", refs=()))[3] != space
    assert ids(prompts.query("a", reasoning=False, refs=()))[3] != space


@pytest.mark.parametrize("skill", ["point", "segment"])
def test_point_and_segment_take_references(skill: str) -> None:
    prompt = getattr(tiny_prompts(tiny_config()), skill)("a", refs=[(0.1, 0.2), (0, 0, 1, 0.5)])

    assert ids(prompt)[3:8] == [5, 5, 5, 5, 6]
    assert values(prompt) == [(0.1,), (0.2,), (0.5,), (0.25,), (1.0, 0.5)]


def test_reasoning_has_a_suffix_of_its_own() -> None:
    prompts = tiny_prompts(tiny_config())

    assert ids(prompts.query("a", reasoning=False, refs=()))[-1] == 3
    assert ids(prompts.query("a", reasoning=True, refs=()))[-1] == 4


def test_the_spelling_of_a_special_token_is_only_text() -> None:
    prompt = PROMPTS.detect("<|endoftext|><|coord|>")

    assert min(ids(prompt)[3:-1]) > 9
    assert PROMPTS.decode(ids(prompt)[3:-1]) == " <|endoftext|><|coord|>"


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ((0.5,), "has 1 numbers"),
        ((0.1, 0.2, 0.3), "has 3 numbers"),
        ((0.5, 1.01), "leaves the image"),
        ((-0.01, 0.5), "leaves the image"),
        ((0.5, float("nan")), "leaves the image"),
        ((320, 240), "divide pixels by"),
        ((0.6, 0.1, 0.5, 0.2), "corners swapped"),
        ((0.1, 0.6, 0.5, 0.2), "corners swapped"),
        (("0.1", 0.5), "not a number"),
        ((True, 0.5), "not a number"),
        ("ab", "not a list of numbers"),
        (0.5, "not a list of numbers"),
        (None, "not a list of numbers"),
    ],
)
def test_a_reference_outside_the_image_or_of_another_shape_is_refused(ref: Any, message: str) -> None:
    with pytest.raises(SpatialRefError, match=message):
        PROMPTS.query("what?", reasoning=False, refs=[ref])


def test_references_may_touch_the_border_and_be_arrays() -> None:
    assert check_reference((0, 0, 1, 1)) == (0.0, 0.0, 1.0, 1.0)
    assert check_reference([0.5, 0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5, 0.5)
    assert check_reference(np.array([0.25, 1], np.float32)) == (0.25, 1.0)


def without_templates() -> MoondreamPrompts:
    config = tiny_config()
    bare = dataclasses.replace(config, tokenizer=TokenizerConfig())
    return tiny_prompts(bare)


def test_a_missing_skill_is_named_with_the_available_ones() -> None:
    with pytest.raises(UnsupportedSkillError, match="not trained for segment; it has caption, query, detect, point"):
        PROMPTS.segment("a", refs=())
    for ask in ("detect", "point", "query"):
        extra = {"detect": {}, "point": {"refs": ()}, "query": {"refs": (), "reasoning": False}}[ask]
        with pytest.raises(UnsupportedSkillError, match=f"not trained for {ask}; it has no skills at all"):
            getattr(without_templates(), ask)("a", **extra)


def test_caption_lengths_are_checked() -> None:
    with pytest.raises(SettingsError, match="'huge' is unknown: it is one of short, normal, long"):
        PROMPTS.caption("huge")
    with pytest.raises(UnsupportedSkillError, match="length long; it has captions of length short, normal"):
        tiny_prompts(tiny_config()).caption("long")
    with pytest.raises(UnsupportedSkillError, match="no skills at all"):
        without_templates().caption("short")


def test_path_ids_are_what_spells_a_path() -> None:
    prompts = tiny_prompts(tiny_config())
    path = prompts.path_ids

    assert sorted(path.commands.values()) == sorted("MmLlHhVvCcSsQqTtZz")
    assert sorted(path.integers.values()) == list(range(10))  # a byte-level vocabulary without merges
    assert all(prompts.decode([index]).strip() == str(number) for index, number in path.integers.items())
    assert [prompts.decode([index]) for index in path.minus] == ["-"]


def test_segment_needs_a_tokenizer_that_can_spell_a_path() -> None:
    config = dataclasses.replace(tiny_config(), text=dataclasses.replace(tiny_config().text, vocab_size=25))
    with pytest.raises(UnsupportedSkillError, match="single tokens for path commands"):
        tiny_prompts(config).segment("a", refs=())


@pytest.mark.parametrize(
    ("kind", "any_id", "in_answer", "in_reasoning"),
    [("moondream2", True, (3,), (0, 6)), ("moondream3", False, (3,), (0, 6)), ("photonlite_nano", False, (), ())],
)
def test_the_rules_of_a_family_reach_the_grammars(
    kind: str, any_id: bool, in_answer: tuple[int, ...], in_reasoning: tuple[int, ...]
) -> None:
    vocabulary = tiny_prompts(tiny_config(kind, text={"n_kv_heads": 3})).vocabulary

    assert vocabulary.any_id_continues is any_id
    assert vocabulary.suppressed_in_answer == in_answer
    assert vocabulary.suppressed_in_reasoning == in_reasoning


def test_a_checkpoint_may_suppress_nothing() -> None:
    vocabulary = tiny_prompts(tiny_config("moondream2", tokenizer={"suppress": False})).vocabulary

    assert vocabulary.suppressed_in_answer == vocabulary.suppressed_in_reasoning == ()


def test_special_ids_come_from_the_configuration() -> None:
    raw = {"tokenizer": {"eos_id": 11, "answer_id": 12, "coord_id": 13, "size_id": 14, "bos_id": 11}}
    vocabulary = tiny_prompts(MoondreamConfig.from_dict(raw)).vocabulary

    assert (vocabulary.end, vocabulary.answer, vocabulary.coordinate, vocabulary.size) == (11, 12, 13, 14)
    assert vocabulary.suppressed_in_answer == (12,)


def test_text_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(PromptError, match="not valid Unicode"):
        PROMPTS.detect("\ud800")


def test_spelled_ids_join_to_the_text() -> None:
    pieces = PROMPTS.pieces()

    assert len(pieces) == PROMPTS.vocab_size
    assert b"".join(pieces[index] for index in PROMPTS.spell('a "red" ball')) == b'a "red" ball'
    ids = PROMPTS.vocabulary
    assert [pieces[index] for index in (ids.end, ids.answer, ids.coordinate, ids.size, ids.ground_start)] == [b""] * 5
    with pytest.raises(PromptError):
        PROMPTS.spell(" ")


def test_tokens_that_text_never_has_are_found_by_what_they_contain() -> None:
    given = tiny_config("moondream2", tokenizer={"never_in_text": ["{", "Qu"]})
    prompts = tiny_prompts(given)
    found = prompts.vocabulary.never_in_text
    assert found
    special = range(given.family.controls_to)
    for token_id in range(prompts.vocab_size):
        text = prompts.decode([token_id])
        assert (token_id in found) == (token_id not in special and ("{" in text or "Qu" in text)), text
