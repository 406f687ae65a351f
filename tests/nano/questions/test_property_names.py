"""Token tables of names: the meaning and the object that were asked for, in any spelling."""

import torch

from bench.nano.questions.layout import NONE
from bench.nano.questions.text.properties import MEANINGS
from bench.nano.questions.tokenizer import load_answer_tokenizer
from bench.nano.questions.typed.property_names import PropertyNames
from bench.nano.scenes.objects import load_objects
from tests.nano.questions.named_reading import mentions, names
from tests.nano.small import maker

TOKENIZER = load_answer_tokenizer()


def table():
    names = maker()._named._names
    assert isinstance(names, PropertyNames)
    return names


def drawn(rows):
    """(text, ids) of rows."""
    spelled = [[id_ for id_ in row if id_ != NONE] for row in table().ids[rows].tolist()]
    return [(TOKENIZER.decode(ids), ids) for ids in spelled]


def test_names_have_their_meaning():
    torch.manual_seed(0)
    invented = 0
    for place, meaning in enumerate(MEANINGS):
        texts = {text for text, _ in drawn(table()(torch.full((400,), place)))}
        assert len(texts) > 10
        if meaning == "plain":
            invented = sum(text not in names("train") for text in texts)
            assert {names("train").get(text, "plain") for text in texts} == {"plain"}
        else:
            assert {names("train")[text] for text in texts} == {meaning}
    assert invented > 50


def test_mentions_name_the_kind():
    torch.manual_seed(0)
    kinds = torch.randint(NONE, len(load_objects()), (300,))
    for meaning in ("count", "present", "colour", "unknown"):
        rows = table().mention(torch.full((300,), MEANINGS.index(meaning)), kinds)
        for (text, _), kind in zip(drawn(rows), kinds.tolist(), strict=True):
            said, of = mentions("train")[text]
            assert of == (None if kind == NONE else kind)
            assert said in (meaning, "name")  # a plural may be a singular too


def test_some_names_are_spelled_in_other_pieces():
    torch.manual_seed(0)
    found = drawn(table()(torch.zeros(400, dtype=torch.long)))
    other = sum(TOKENIZER.encode(text).ids != ids for text, ids in found)
    assert 0 < other < 200
