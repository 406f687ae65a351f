import random
from collections import Counter
from functools import cache

import pytest
import torch

from bench.nano.questions import names as question_names
from bench.nano.questions.layout import NONE
from bench.nano.questions.names import NAME_TOKENS, Names, random_below
from bench.nano.questions.text import language
from bench.nano.questions.text.colours import COLOUR_NOUNS
from bench.nano.scenes.objects import index_of, load_objects
from tests.nano.small import maker
from tests.tiny import CPU


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@cache
def names():
    return Names(maker().encode, random.Random(0), CPU)


def spelled(row, form=0):
    """A name with its space, as text."""
    ids = [id_ for id_ in names().ids[row, form].tolist() if id_ != NONE]
    return maker()._answer_tokenizer.decode(ids)


def called(kind, count):
    return Counter(spelled(row) for row in names()(torch.full((count,), kind)).tolist())


def test_things_are_called_by_their_names_or_synonyms():
    item = load_objects()[index_of("cup")]
    found = called(index_of("cup"), 6000)
    assert {name.removeprefix(" ") for name in found} == set(item.names)
    assert found[" cup"] / 6000 == pytest.approx(language.NAME_SHARE, abs=0.03)
    for synonym in item.synonyms:
        assert found[" " + synonym] / 6000 == pytest.approx((1 - language.NAME_SHARE) / len(item.synonyms), abs=0.02)


def test_what_has_no_synonyms_has_its_name():
    assert called(index_of("banana"), 200) == {" banana": 200}


@pytest.mark.long
def test_every_name_is_called_by_nothing_else():
    for row in names()(torch.arange(len(load_objects())).repeat(20)).tolist():
        assert index_of(spelled(row).removeprefix(" ")) is not None
    rows = names()(torch.arange(260).repeat(20)).tolist()
    for row, kind in zip(rows, list(range(260)) * 20, strict=True):
        assert index_of(spelled(row).removeprefix(" ")) == kind


def test_forms_of_a_name():
    row = int(names()(torch.tensor([index_of("banana")])))
    assert [spelled(row, form) for form in range(3)] == [" banana", " bananas", " a banana"]
    row = int(names()(torch.tensor([index_of("umbrella")])))
    assert spelled(row, 2).startswith((" an ", " a "))


def test_words_without_a_singular_have_no_article():
    row = int(names()(torch.tensor([index_of("glasses")])))
    assert not names().has_singular[row]
    assert [spelled(row, form) for form in range(3)] == [spelled(row)] * 3


def test_unknown_words_name_nothing_and_some_are_invented():
    found = called(NONE, 6000)
    words = {name.removeprefix(" ") for name in found}
    assert all(index_of(word) is None for word in words)
    listed = set(language.unknown_words("train"))
    invented = sum(count for name, count in found.items() if name.removeprefix(" ") not in listed) / 6000
    assert invented == pytest.approx(0.15, abs=0.03)
    assert not words & set(language.unknown_words("held_out"))


def test_nouns_with_a_colour_follow_the_names():
    found = [spelled(names().nouns + n) for n in range(len(COLOUR_NOUNS))]
    assert found == [" " + noun for noun in COLOUR_NOUNS]


def test_few_names_are_too_long():
    all_names = sum(len(item.names) for item in load_objects())
    assert sum(size + 1 for size in names()._synonyms.tolist()) > 0.97 * all_names
    assert max(names().longest) <= NAME_TOKENS + 1  # and an article


def test_a_name_must_not_be_too_long(monkeypatch):
    monkeypatch.setattr(question_names, "NAME_TOKENS", 3)
    with pytest.raises(ValueError, match="longer than 3 tokens"):
        Names(maker().encode, random.Random(0), CPU)


def test_below():
    drawn = random_below(torch.tensor([3, 1, 0]).expand(3000, 3))
    assert drawn.amax(0).tolist() == [2, 0, 0]
    assert (drawn[:, 0].bincount() / 3000).tolist() == pytest.approx([1 / 3] * 3, abs=0.04)
