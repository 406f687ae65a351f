from functools import cache

import pytest
import torch

from bench.nano.questions import mix
from bench.nano.questions.captions import LONG, NORMAL, SHORT, Captions
from bench.nano.questions.layout import NONE
from bench.nano.questions.text import language
from tests.nano.small import maker, random_scenes
from tests.tiny import CPU


@cache
def captions():
    return Captions(maker().encode, CPU)


def written(style, room):
    scenes = random_scenes(200, kinds=20, empty=0.1)
    styles, part = captions()(scenes, torch.full((200,), style), room)
    ids = [[id_ for id_ in row if id_ != NONE] for row in part.ids.tolist()]
    return scenes, styles.tolist(), ids


@pytest.mark.long
def test_a_long_caption_that_does_not_fit_is_a_normal_one():
    scenes, styles, rows = written(LONG, 80)
    assert {NORMAL, LONG} == set(styles)
    for row, (style, ids) in enumerate(zip(styles, rows, strict=True)):
        seen = scenes.labels[row].tolist(), scenes.boxes[row, :, :2].tolist()
        scene = [(label, *centre) for label, centre in zip(*seen, strict=True) if label >= 0]
        whole = maker().encode(language.caption(scene, "long"))
        assert (len(whole) <= 80) == (style == LONG)
        assert ids == maker().encode(language.caption(scene, "long" if style == LONG else "normal"))


def test_other_styles_stay():
    for style in (SHORT, NORMAL):
        assert set(written(style, 5)[1]) == {style}


def test_no_listing_is_longer_than_foreseen():
    assert max(map(len, written(NORMAL, 999)[2])) <= captions().longest_listing(10)


def test_what_decides_counts_more_than_what_follows_from_it():
    _, part = captions()(random_scenes(200, kinds=20, empty=0.1), torch.full((200,), NORMAL), 999)
    assert part.weights.shape == part.ids.shape
    weight_of = {}
    for row, weights in zip(part.ids.tolist(), part.weights.tolist(), strict=True):
        for id_, weight in zip(row, weights, strict=True):
            weight_of.setdefault(id_, set()).add(round(weight, 3))
    (one,), (comma,), (join,), (stop,), (opening,) = (maker().encode(text)[:1] for text in ("1", ",", " and", ".", "A"))
    assert weight_of[one] == {mix.COUNTED_WEIGHT}
    assert weight_of[comma] == weight_of[stop] == {mix.JOIN_WEIGHT}
    assert mix.JOIN_WEIGHT in weight_of[join]  # a name may hold the word too
    assert weight_of[opening] == {mix.PHRASE_WEIGHT}
    for text in ("red apple", "fire engine"):
        assert all(weight_of.get(id_, {mix.NAMED_WEIGHT}) == {mix.NAMED_WEIGHT} for id_ in maker().encode(f" {text}"))
