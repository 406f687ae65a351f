from collections import Counter

import pytest
import torch

from bench.nano.questions.layout import NONE
from bench.nano.questions.text import language, relations
from bench.nano.questions.wording import Group, _cut
from bench.nano.scenes.objects import index_of
from tests.nano.small import maker


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def rows(group, kind, second=None, count=200):
    """Wordings of a group about a kind (or a tensor of kinds), as ids."""
    kinds = torch.full((count,), kind) if isinstance(kind, int) else kind
    wording = maker()._wording
    names = wording._names
    other = None if second is None else names(torch.full((count,), second))
    groups = torch.full((len(kinds),), wording.group[group])
    return [[id_ for id_ in row if id_ != NONE] for row in wording(groups, names(kinds), other).tolist()]


def texts(group, kind, second=None, count=200):
    return Counter(maker()._tokenizer.decode(ids).removeprefix(" ") for ids in rows(group, kind, second, count))


@pytest.mark.long
def test_pieces_side_by_side_are_the_tokens_of_the_whole():
    wording = maker()._wording
    for group in wording.group:
        for ids in rows(group, torch.randint(-1, 260, (1500,))):
            text = maker()._tokenizer.decode(ids)
            assert ids == maker().encode_prompt(text), group
            assert len(ids) <= wording.longest(group), group
            assert "{" not in text, group


def test_phrases_come_as_often_as_language_says():
    found = texts("phrase", index_of("banana"), count=8000)
    total = sum(weight for _, weight in language.PHRASES)
    for template, weight in language.PHRASES:
        share = found[template.format("banana", "bananas", "a banana")] / 8000
        assert share == pytest.approx(weight / total, abs=0.02)
    assert len(found) == len(language.PHRASES)


def test_marks_are_dropped_now_and_then():
    found = texts("count", index_of("banana"), count=8000)
    asked = [template.format("banana", "bananas") for template in language.COUNT_QUESTIONS]
    assert set(found) == {*asked, *(text[:-1] if text.endswith("?") else text + "." for text in asked)}
    dropped = sum(count for text, count in found.items() if text not in asked) / 8000
    assert dropped == pytest.approx(0.12, abs=0.02)


def test_what_has_no_singular_is_not_asked_for_as_one():
    found = texts("existence", index_of("glasses"), count=1000)
    assert any(text.startswith("are there any glasses") for text in found)
    assert not any(text.startswith("is ") for text in found)
    placed = texts("place left", index_of("glasses"), index_of("dog"), count=300)
    assert any(text.startswith("are the glasses left of the ") for text in placed)
    assert not any(text.startswith("is ") for text in placed)


def test_two_names_stand_in_their_order():
    first, second = index_of("banana"), index_of("strawberry")
    for d in relations.PLACE_QUESTIONS:
        expected = {template.format("banana", "strawberry") for template in relations.PLACE_QUESTIONS[d]}
        found = texts(f"place {d}", first, second, count=1500)
        assert expected <= set(found)
    compared = texts("comparison higher", first, second, count=300)
    assert all(text.index("banana") < text.index("strawberry") for text in compared)


def test_templates_must_leave_a_space_before_a_name():
    with pytest.raises(ValueError, match="a space before each"):
        _cut("is '{0}' there?", Group((), ()), maker().encode)
    with pytest.raises(ValueError, match="up to 2 gaps"):
        _cut("{0} or {1} or {0}?", Group((), ()), maker().encode)
