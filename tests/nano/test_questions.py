import itertools

import pytest
import torch

from bench.nano import language
from bench.nano.questions import BOS, COORD, DETECT_LENGTH, POINT_LENGTH, QUERY_LENGTH, SIZE, TEXT_LENGTH, templates
from bench.nano.tokenizer import load_answer_tokenizer, load_tokenizer
from photonlite.request import SamplingSettings
from photonlite.skills import caption, detect, point, query
from tests.nano.small import maker, random_scenes, scenes_of, shipped_prompts

SETTINGS = SamplingSettings()
DETECT, POINT, COUNT, EXISTS, TEXT = slice(0, 3), 3, 4, 5, 6
LENGTH_NAMES = ("short", "normal", "long")
ROW_LENGTHS = (DETECT_LENGTH,) * 3 + (POINT_LENGTH, QUERY_LENGTH, QUERY_LENGTH, TEXT_LENGTH)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def ask(scenes):
    return maker()(scenes)


def split(questions, row):
    """Prompt ids, answer ids and answer values of one row."""
    answered = questions.answer[row].nonzero().flatten()
    first, last = int(answered[0]), int(answered[-1]) + 1
    ids = questions.ids[row].tolist()
    return ids[:first], ids[first:last], questions.values[row, first:last]


def typed(prompt, skill):
    """What a user typed to get this prompt, and the object it is about (None for an unknown word)."""
    frame = maker().prompts[skill]
    ids = tuple(prompt[len(frame["prefix"]) : -len(frame["suffix"])])
    text = maker().text_of[ids]
    return text, maker().kind_of.get(ids)


def served(request):
    assert all(not token.values for token in request.prompt)
    return [token.id for token in request.prompt]


def instances(scenes, row):
    """(label, cx, cy, width, height) of what can be seen."""
    labels, boxes = scenes.labels[row].tolist(), scenes.boxes[row].tolist()
    return [(label, *box) for label, box in zip(labels, boxes, strict=True) if label >= 0]


def boxes_of(scenes, row, kind):
    """Boxes of a kind in reading order; there are none of an unknown word, None."""
    boxes = [box for label, *box in instances(scenes, row) if label == kind]
    return [boxes[i] for i in language.centre_order([box[:2] for box in boxes])]


# ---- training asks as the package will


def test_prompts_of_detect_are_those_that_the_package_writes():
    questions = ask(random_scenes(100))
    for one, row in itertools.product(questions[DETECT], range(100)):
        prompt, _, _ = split(one, row)
        text, _ = typed(prompt, "detect")
        assert text.startswith(" ")
        assert prompt == served(detect.build(shipped_prompts(), text[1:], settings=SETTINGS))


def test_prompts_of_point_are_those_that_the_package_writes():
    questions = ask(random_scenes(200))[POINT]
    for row in range(200):
        prompt, _, _ = split(questions, row)
        text, _ = typed(prompt, "point")
        assert prompt == served(point.build(shipped_prompts(), text[1:], settings=SETTINGS))


@pytest.mark.parametrize("which", [COUNT, EXISTS])
def test_prompts_of_query_are_those_that_the_package_writes(which):
    questions = ask(random_scenes(200))[which]
    for row in range(200):
        prompt, _, _ = split(questions, row)
        text, _ = typed(prompt, "query")
        request = query.build(shipped_prompts(), text, with_image=True, reasoning=False, refs=None, settings=SETTINGS)
        assert prompt == served(request)


def test_prompts_of_captions_are_those_that_the_package_writes():
    questions = ask(random_scenes(100))[TEXT]
    prompts = [split(questions, row)[0] for row in range(100)]
    offered = [served(caption.build(shipped_prompts(), length, settings=SETTINGS)) for length in LENGTH_NAMES]
    listed = [prompt for prompt in prompts if prompt not in offered]
    assert all(prompt in prompts for prompt in offered)
    assert 10 < len(listed) < 40
    for prompt in listed:
        text, _ = typed(prompt, "query")
        request = query.build(shipped_prompts(), text, with_image=True, reasoning=False, refs=None, settings=SETTINGS)
        assert prompt == served(request)


@pytest.mark.parametrize("about", ["phrases", "unknown", "counts", "exists", "unknown_counts", "totals", "lists"])
def test_every_text_of_the_tables_is_served_as_it_was_trained(about):
    rows = getattr(maker(), about).flatten(0, -2).tolist()
    seen = set()
    for row in rows[:: max(1, len(rows) // 2000)]:
        ids = [token for token in row if token >= 0]
        text = maker().text_of[tuple(ids)]
        seen.add(text)
        if about in ("phrases", "unknown"):
            prompt, frame = shipped_prompts().detect(text[1:]), maker().prompts["detect"]
        else:
            prompt, frame = shipped_prompts().query(text, reasoning=False, refs=()), maker().prompts["query"]
        assert [token.id for token in prompt] == [*frame["prefix"], *ids, *frame["suffix"]]
    assert len(seen) > 10


def test_prompts_are_framed_by_control_tokens():
    """Weights in the world were trained with these: they stay as they are."""

    def spelled(prompt):
        return " ".join(load_tokenizer().id_to_token(token.id) for token in prompt)

    written = shipped_prompts()
    assert spelled(written.detect("bananas")) == "<|skill|> detect <|argument|> Ġbananas <|answer|>"
    assert spelled(written.point("Key", refs=())) == "<|skill|> point <|argument|> Ġkey <|answer|>"
    assert spelled(written.caption("long")) == "<|skill|> caption <|argument|> long <|answer|>"
    question = spelled(written.query("How many?", reasoning=False, refs=()))
    assert question == "<|skill|> query <|argument|> how Ġmany ? <|answer|>"


def test_what_users_type_in_capitals_occurs():
    texts = maker().text_of.values()
    assert any(text.isupper() for text in texts)
    assert any(text[:1].isupper() and text[1:].islower() for text in texts)


def test_skill_words_must_be_single_tokens():
    class Spelling:
        def encode(self, text, add_special_tokens):
            return load_tokenizer().encode("spelled out")

    with pytest.raises(ValueError, match="single tokens"):
        templates(Spelling())


# ---- answers are true


@pytest.mark.parametrize(("skill", "fields"), [("detect", 3), ("point", 2)])
def test_answers_are_all_instances_in_reading_order(skill, fields):
    scenes = random_scenes(300)
    asked = ask(scenes)[DETECT] if skill == "detect" else [ask(scenes)[POINT]]
    most = 0
    for one, row in itertools.product(asked, range(300)):
        prompt, ids, values = split(one, row)
        boxes = boxes_of(scenes, row, typed(prompt, skill)[1])
        assert ids == [COORD, COORD, SIZE][:fields] * len(boxes) + [BOS]
        for place, (x, y, w, h) in enumerate(boxes):
            x_value, y_value, *rest = values[place * fields : (place + 1) * fields].tolist()
            assert (x_value[0], y_value[0]) == (x, y)
            assert rest == [[w, h]][: fields - 2]
        most = max(most, len(boxes))
    assert most > 3


def test_numbers_stand_in_answers_only():
    for one in ask(random_scenes(50)):
        numbers = (one.ids == COORD) | (one.ids == SIZE)
        assert not (numbers & ~one.answer).any()


def test_phrases_name_what_they_are_about():
    for ids, text in itertools.islice(maker().text_of.items(), 0, None, 7):
        if text.startswith(" ") and ids in maker().kind_of:
            assert text[1:].lower() in language.all_object_phrases(maker().kind_of[ids])


@pytest.mark.parametrize("skill", ["detect", "point"])
def test_three_in_four_are_there_and_the_rest_are_not(skill):
    scenes = random_scenes(400, empty=0.0)
    asked = ask(scenes)[DETECT] if skill == "detect" else [ask(scenes)[POINT]]
    rows = [typed(split(one, row)[0], skill)[1] for one, row in itertools.product(asked, range(400))]
    there = [bool((scenes.labels[n % 400] == kind).any()) for n, kind in enumerate(rows) if kind is not None]
    assert 0.68 < sum(there) / len(rows) < 0.82
    unknown, absent = rows.count(None) / len(rows), there.count(False) / len(rows)
    assert 0.05 < unknown < 0.16
    assert 0.09 < absent < 0.22


def test_absent_objects_are_often_of_a_kind_that_is_there():
    scenes = random_scenes(400, kinds=1, empty=0.0)
    category = maker().category
    alike = []
    for one, row in itertools.product(ask(scenes)[DETECT], range(400)):
        kind, there = typed(split(one, row)[0], "detect")[1], int(scenes.labels[row, 0])
        if kind is not None and kind != there:
            alike.append(bool(category[kind] == category[there]))
    assert sum(alike) / len(alike) > 0.4


def test_what_is_there_is_never_taken_for_absent():
    # All kinds of the smallest category: another one of the same category cannot be had.
    category = int(maker().category.bincount().argmin())
    kinds = (maker().category == category).nonzero().flatten()
    labels = kinds.repeat(10)[:10].expand(400, 10)
    asked = ask(scenes_of(labels, torch.rand(400, 10, 4)))[DETECT]
    there = [len(split(one, row)[1]) > 1 for one, row in itertools.product(asked, range(400))]
    assert 0.7 < sum(there) / len(there) < 0.79


def test_an_empty_picture_is_answered_with_nothing():
    scenes = scenes_of(torch.full((40, 10), -1), torch.zeros(40, 10, 4))
    detects, points, counts, exists, texts = (ask(scenes)[i] for i in (0, POINT, COUNT, EXISTS, TEXT))
    decode = load_answer_tokenizer().decode
    for row in range(40):
        assert split(detects, row)[1] == split(points, row)[1] == [BOS]
        assert decode(split(counts, row)[1]) == "0"
        assert decode(split(exists, row)[1]) == "No"
        assert decode(split(texts, row)[1]) in {"Nothing.", "A picture of nothing."}


def test_counts_are_true():
    scenes = random_scenes(300)
    questions = ask(scenes)[COUNT]
    totals, answers = 0, set()
    for row in range(300):
        prompt, ids, _ = split(questions, row)
        text, kind = typed(prompt, "query")
        total = any(word in text.lower() for word in ("objects", "things", "everything"))
        truth = instances(scenes, row) if total else boxes_of(scenes, row, kind)
        assert load_answer_tokenizer().decode(ids) == language.count_answer(len(truth))
        totals += total
        answers.add(len(truth))
    assert 40 < totals < 110  # a quarter of 300
    assert answers >= {0, 1, 2, 3, 4}


def test_existence_is_true():
    scenes = random_scenes(300)
    questions = ask(scenes)[EXISTS]
    answers = []
    for row in range(300):
        prompt, ids, _ = split(questions, row)
        _, kind = typed(prompt, "query")
        answers.append(language.existence_answer(len(boxes_of(scenes, row, kind))))
        assert load_answer_tokenizer().decode(ids) == answers[-1]
    assert 0.6 < answers.count("Yes") / 300 < 0.9


def test_questions_name_what_they_are_about():
    objects = maker().objects
    for ids, kind in itertools.islice(maker().kind_of.items(), 0, None, 11):
        text = maker().text_of[ids].lower()
        assert any(name in text for name in (*objects[kind].names, *objects[kind].plurals))


@pytest.mark.parametrize("kinds", [1, 2, 5, 40])
def test_captions_say_what_language_says(kinds):
    scenes = random_scenes(250, seed=kinds, kinds=kinds, empty=0.1)
    questions = ask(scenes)[TEXT]
    offered = {tuple(served(caption.build(shipped_prompts(), n, settings=SETTINGS))): n for n in LENGTH_NAMES}
    said = set()
    for row in range(250):
        prompt, ids, _ = split(questions, row)
        length = offered.get(tuple(prompt), "short")  # questions such as "what do you see?" get the short one
        truth = language.caption([item[:3] for item in instances(scenes, row)], length)
        assert shipped_prompts().decode(ids) == truth
        # The very tokens that the tokenizer makes of the text.
        assert ids == [*load_answer_tokenizer().encode(truth).ids, BOS]
        said.add(length)
    assert said == set(LENGTH_NAMES)


# ---- rows


def test_rows_have_their_lengths_and_end_with_the_end():
    scenes = random_scenes(100, empty=0.0)
    for one, length in zip(ask(scenes), ROW_LENGTHS, strict=True):
        assert one.ids.shape == one.answer.shape == (100, length)
        assert one.values.shape == (100, length, 2)
        assert int(one.ids.min()) >= 0
        for row in range(100):
            _, ids, _ = split(one, row)
            assert len(ids) == int(one.answer[row].sum())  # no gaps
            assert ids[-1] == BOS
            assert BOS not in ids[:-1]
            rest = one.ids[row][int(one.answer[row].nonzero()[-1]) + 1 :]
            assert not rest.any()


def test_ten_of_a_kind_with_the_longest_name_fit():
    phrases = (maker().phrases >= 0).sum(-1).amax(1)
    longest = int(phrases.argmax())
    boxes = torch.rand(200, 10, 4)
    for one, fields in zip(ask(scenes_of(torch.full((200, 10), longest), boxes))[:4], (3, 3, 3, 2), strict=True):
        sizes = {len(split(one, row)[1]) for row in range(200)}
        assert sizes == {1, 10 * fields + 1}


def test_the_same_scenes_are_asked_about_in_other_words():
    scenes = random_scenes(60)
    first, second = ask(scenes), ask(scenes)
    assert not torch.equal(first[0].ids, second[0].ids)
    assert not torch.equal(first[TEXT].ids, second[TEXT].ids)
