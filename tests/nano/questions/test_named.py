"""Questions whose properties have any names: valid JSON, true of the image, and never a name that is held out."""

import json
from collections import Counter

import pytest
import torch

from bench.nano.questions.layout import BOS
from bench.nano.questions.mix import BEGUN_WEIGHT, FORCED_WEIGHT, LENGTHS, NAME_WEIGHT, ROW, TYPED_COUNT_WEIGHT
from bench.nano.questions.text import properties
from tests.nano.questions.named_reading import Asked, is_true, mentions, names
from tests.nano.questions.reading import read
from tests.nano.questions.typed_reading import document
from tests.nano.small import maker, random_scenes

NAMED, BATCH = ROW.index("named"), 300


def asked_about(scenes):
    """(question, its answer as JSON) of the rows that are not cut."""
    questions = maker()(scenes)[NAMED]
    rows = [(number, read(questions, number)) for number in range(len(questions.ids))]
    whole = [(number, row) for number, row in rows if row.answer[-1] == BOS]
    assert len(whole) > 0.97 * len(rows)
    return [(Asked(scenes, number, row), row, json.loads(document(row)[0])) for number, row in whole]


@pytest.fixture(scope="module", params=[3, pytest.param(40, marks=pytest.mark.long)])
def answers(request):
    torch.manual_seed(request.param)
    return asked_about(random_scenes(BATCH, seed=request.param, kinds=request.param, empty=0.5))


def bare_counts(answer):
    return sum(bare_counts(one) if isinstance(one, dict) else type(one) is int for one in answer.values())


def test_bare_counts_weigh_more_than_other_values(answers):
    total = 0
    for _, row, answer in answers:
        count = bare_counts(answer)
        assert sum(abs(weight - TYPED_COUNT_WEIGHT) < 1e-6 for weight in row.weights) == count
        total += count
    assert total > 50


def shape(answer):
    """(shape, properties with the name before them)."""
    inner = [isinstance(value, dict) and "at" not in value for value in answer.values()]
    if not any(inner):
        return "flat", [("", name, value) for name, value in answer.items()]
    outside = [one for one in answer if one in mentions("train")]
    return "nested" if len(outside) == len(answer) else "wrapped", [
        (outer, name, value) for outer, one in answer.items() for name, value in one.items()
    ]


def test_values_are_true_by_name_question_and_type(answers):
    seen, wrong = Counter(), []
    for asked, row, answer in answers:
        how, found = shape(answer)
        for outer, name, value in found:
            about = asked
            if how == "nested":
                meaning, kind = mentions("train")[outer]
                assert meaning == "name"
                about = Asked.__new__(Asked)
                about.truth, about.answer = asked.truth, None
                about._of("kind", kind)
                about.answer = asked.truth.name(about.match[0]) if about.match else "Nothing"
            right, meaning, of = is_true(about, name, value)
            if not right:
                wrong.append((row.text, name, value))
            seen[meaning, of] += 1
            seen[how] += 1
            seen[type(value).__name__] += 1
    assert not wrong
    assert {"flat", "nested", "wrapped", "bool", "int", "str", "dict", "NoneType"} <= set(seen)
    contexts = {key[1] for key in seen if isinstance(key, tuple) and key[0] == "plain"}
    assert contexts >= {"count", "existence", "total", "kind", "scene", "reference"}
    assert {key[0] for key in seen if isinstance(key, tuple)} >= set(properties.MEANINGS) - {"email", "date", "time"}


def test_names_that_are_held_out_never_come(answers):
    kept = {name for name in names("held_out") if name not in names("train") and name not in mentions("train")}
    kept |= set(mentions("held_out")) - set(mentions("train")) - set(names("train"))
    seen = set()
    for _, _, answer in answers:
        seen |= {name for outer, name, _ in shape(answer)[1]} | set(answer)
    assert not seen & kept
    assert seen & set(names("train"))
    assert seen & set(mentions("train"))


@pytest.mark.long
def test_a_name_that_says_nothing_is_answered_in_the_type_that_is_forced():
    """For the same question: a number, true or false, or words."""
    torch.manual_seed(0)
    types = Counter()
    for asked, _, answer in asked_about(random_scenes(1200, empty=0.5)):
        how, found = shape(answer)
        if how == "flat" and asked.about in ("count", "existence"):
            for _, name, value in found:
                if names("train").get(name, "plain") == "plain" and name not in mentions("train"):
                    types[asked.about, type(value).__name__] += 1
    for about in ("count", "existence"):
        assert min(types[about, one] for one in ("int", "bool", "str")) > 15


def test_names_weigh_little_and_what_ends_a_number_all():
    torch.manual_seed(0)
    questions = maker()(random_scenes(200))[NAMED]
    ends = [maker().encode(run)[0] for run in (',"', "}")]
    weights = Counter()
    for number in range(200):
        row = read(questions, number)
        assert len(row.prompt) + len(row.answer) <= LENGTHS["named"]
        weights.update(round(weight, 3) for weight in row.weights)
        digits = [i for i, id_ in enumerate(row.answer[:-1]) if id_ in range(21, 60) and row.weights[i] == 1]
        for place in digits:
            if row.answer[place + 1] in ends:
                assert row.weights[place + 1] == 1
    assert {1.0, round(NAME_WEIGHT, 3), FORCED_WEIGHT, BEGUN_WEIGHT} <= set(weights)


def test_a_property_has_a_name_of_its_own(answers):
    for _, row, answer in answers:
        # A name that comes twice would be lost.
        text = document(row)[0]
        assert json.dumps(answer, separators=(",", ":"), ensure_ascii=False) == json.dumps(
            json.loads(text, object_pairs_hook=distinct), separators=(",", ":"), ensure_ascii=False
        )


def distinct(pairs):
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)
