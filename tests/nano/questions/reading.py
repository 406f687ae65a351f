"""Questions read back from their ids: what was typed, which question of `language.py` that is, and the answer.

Reading is by the templates and names alone; the tables of the question maker have no part in it.
"""

import re
from dataclasses import dataclass
from functools import cache

from bench.nano.questions.layout import ANSWER, BOS, COORD, SIZE, THINK
from bench.nano.questions.text import colours, language, relations
from bench.nano.questions.tokenizer import load_tokenizer
from bench.nano.scenes.english import article
from bench.nano.scenes.objects import index_of, load_objects

TOKENIZER = load_tokenizer()


@dataclass(frozen=True)
class Row:
    """One row of questions: ids without padding, and the numbers at coordinates and sizes."""

    skill: str
    refs: list
    text: str
    thinking: bool
    prompt: list
    answer: list
    values: list
    weights: list
    outline: list


def read(questions, row):
    """Take a row apart; its prompt ends with the first ANSWER or THINK."""
    ids, weight = questions.ids[row].tolist(), questions.weight[row].tolist()
    end = next(place for place, id_ in enumerate(ids) if id_ in (ANSWER, THINK)) + 1
    # What is too long for its row has no end; only a typed answer can be.
    stop = ids.index(BOS) + 1 if BOS in ids else len(ids) + 1
    prompt, values = ids[:end], questions.values[row].tolist()
    words = [place for place in range(3, end - 1) if prompt[place] not in (COORD, SIZE)]
    refs = values[3 : words[0] if words else end - 1]
    assert not any(ids[stop:])
    assert not any(weight[:end])
    assert all(weight[end:stop])
    assert not any(weight[stop:])
    return Row(
        skill=TOKENIZER.decode([prompt[1]]).strip(),
        refs=_reference(refs),
        text=TOKENIZER.decode([prompt[place] for place in words]).removeprefix(" "),
        thinking=prompt[-1] == THINK,
        prompt=prompt,
        answer=ids[end:stop],
        values=values[end:stop],
        weights=weight[end:stop],
        outline=questions.outline[row, end:stop].tolist(),
    )


def _reference(numbers):
    """A point (x, y) or a box (x_min, y_min, x_max, y_max), as users give it."""
    if not numbers:
        return []
    (x, _), (y, _), *size = numbers
    return [[x - w / 2, y - h / 2, x + w / 2, y + h / 2] for w, h in size] or [[x, y]]


def said(row):
    """The text of an answer of words alone."""
    return TOKENIZER.decode(row.answer[:-1])


def plainly(row):
    """The same, "Yes" and "No" with their capitals: some are spelled as in lists of choices."""
    text = said(row)
    return text.capitalize() if text in ("yes", "no") else text


# ---- which question it is


@dataclass(frozen=True)
class Meaning:
    """A question, what it is of (a direction, or "point" or "box"), and the names in it, in the order of its gaps."""

    question: str
    of: str
    names: tuple


@cache
def templates():
    """(question, of, pattern) of all templates."""
    plain = {"count": language.COUNT_QUESTIONS, "existence": language.EXISTENCE_QUESTIONS}
    plain |= {
        "total": language.TOTAL_QUESTIONS,
        "list": (*language.LIST_QUESTIONS, *language.LATER_LIST_QUESTIONS),
        "colour": colours.COLOUR_QUESTIONS,
    }
    plain |= {"phrase": [template for template, _ in language.PHRASES]}
    grouped = {"reference": language.REFERENCE_QUESTIONS, "relation": relations.RELATION_QUESTIONS}
    grouped |= {"place": relations.PLACE_QUESTIONS, "comparison": relations.COMPARISON_QUESTIONS}
    rows = [(name, "", template) for name, group in plain.items() for template in group]
    rows += [(name, of, t) for name, groups in grouped.items() for of, group in groups.items() for t in group]
    rows += [("place", of, "are " + t[3:]) for of, group in relations.PLACE_QUESTIONS.items() for t in group]
    return [(name, of, _pattern(template, marked=name != "phrase")) for name, of, template in rows]


def _pattern(template, marked):
    body = re.sub(r"\\{(\d)\\}", r"(?P<g\1>[^?.,]+)", re.escape(template.removesuffix("?")))
    end = "" if not marked else r"\??" if template.endswith("?") else r"\.?"
    return re.compile(body + end)


def meanings(text, questions):
    """Everything a text can mean as one of some questions, with names that are known; else with unknown words."""
    found = []
    for question, of, pattern in templates():
        if question in questions and (match := pattern.fullmatch(text)):
            gaps = match.groupdict()
            found.append((question, of, gaps, all(_known(question, gap, word) for gap, word in gaps.items())))
    known = [one for one in found if one[3]]
    # The longest template leaves the shortest unknown word.
    chosen = known or sorted(found, key=lambda one: len("".join(one[2].values())))[:1]
    return {Meaning(question, of, tuple(gaps[gap] for gap in sorted(gaps))) for question, of, gaps, _ in chosen}


def _known(question, gap, word):
    if question == "colour":
        return word in colours.COLOUR_NOUNS
    if question in ("relation", "place", "comparison"):
        return word in words()[0]
    return word in words()[int(gap[1])]


@cache
def words():
    """All known singulars, plurals, and singulars with an article."""
    pairs = [pair for item in load_objects() for pair in zip(item.names, item.plurals, strict=True)]
    single = {s if language.has_no_singular((s, p)) else f"{article(s)} {s}" for s, p in pairs}
    return {s for s, _ in pairs}, {p for _, p in pairs}, single


def kind_of(name):
    """The class index of a name in any form, None for an unknown word."""
    bare = re.sub(r"^an? ", "", name)
    return index_of(name) if index_of(name) is not None else index_of(bare)


# ---- what reasoning points at and says


def grounded(scene, question, kind):
    """Places in the scene that reasoning points at, in reading order; `kind` None is an unknown word."""
    places = [i for i, instance in enumerate(scene) if question == "total" or instance[0] == kind]
    return [places[i] for i in language.centre_order([scene[place][1:] for place in places])]


def reasoning_text(question, kind, count):
    """What reasoning says about `count` things found of a kind."""
    if not count:
        return "Nothing"
    return language.EVERYTHING if question == "total" or kind is None else load_objects()[kind].plural
