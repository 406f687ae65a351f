"""Names of properties: every name has one meaning, and one in five is held out in all its styles."""

import random
from collections import Counter

import pytest

from bench.nano.questions.text import properties
from bench.nano.questions.text.properties import ALWAYS, MEANINGS, MENTIONS, STYLES
from bench.nano.questions.tokenizer import load_answer_tokenizer
from bench.nano.scenes.objects import load_objects


def test_every_name_has_one_meaning():
    names = Counter(name for m in MEANINGS for split in ("train", "held_out") for name in properties.names(m, split))
    assert set(names.values()) == {1}
    assert set(names) == properties.known()
    for meaning in MEANINGS:
        assert not set(properties.names(meaning, "train")) & set(properties.names(meaning, "held_out"))


def test_one_in_five_is_held_out_and_the_commonest_are_not():
    trained = {name for meaning in MEANINGS for name in properties.names(meaning, "train")}
    held_out = properties.known() - trained
    assert 0.14 < len(held_out) / len(properties.known() - ALWAYS) < 0.26
    assert not ALWAYS & held_out
    assert {"answer", "count", "position"} <= trained
    assert {"{1}", "num_{1}"} <= set(properties.mentions("count", "train"))
    for meaning in ("count", "present", "plain", "name", "where"):
        assert properties.names(meaning, "held_out")


@pytest.mark.parametrize(
    ("style", "text"),
    [("snake", "num_red_apples"), ("camel", "numRedApples"), ("pascal", "NumRedApples"), ("kebab", "num-red-apples")],
)
def test_styles(style, text):
    name = properties.mention("num_{1}", "red apple", "red apples")
    assert properties.styled(name, style) == text
    assert text in properties.variants([name])


def test_no_name_without_an_object_is_an_object():
    singles = {name.replace(" ", "_") for item in load_objects() for name in (item.name, item.plural)}
    assert not singles & properties.known()


def test_random_names_of_the_splits_differ_and_mean_nothing():
    rng = random.Random(0)
    trained, held_out = ({properties.random_name(rng, split) for _ in range(3000)} for split in ("train", "held_out"))
    assert not trained & held_out
    assert not (trained | held_out) & properties.known()
    assert all(name.replace("_", "").isalnum() for name in trained)


def test_any_ascii_name_can_be_spelled():
    tokenizer, rng = load_answer_tokenizer(), random.Random(1)
    printable = [chr(code) for code in range(32, 127)]
    names = ["".join(rng.choices(printable, k=rng.randint(1, 20))) for _ in range(500)]
    names += [properties.styled(name, style) for name in sorted(properties.known()) for style in STYLES]
    for name in names:
        assert tokenizer.decode(tokenizer.encode(name).ids) == name


def test_templates_mention_an_object_once():
    for templates in MENTIONS.values():
        for template in templates.split():
            assert template.count("{") == 1
            assert template.format("a", "b") != template
