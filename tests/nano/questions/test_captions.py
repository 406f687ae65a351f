import torch

from bench.nano.questions.captions import LONG, NORMAL, SHORT, Captions
from bench.nano.questions.layout import NONE
from bench.nano.questions.text import language
from tests.nano.small import maker, random_scenes
from tests.tiny import CPU

CAPTIONS = Captions(maker().encode, CPU)


def written(style, room):
    scenes = random_scenes(200, kinds=20, empty=0.1)
    styles, rows = CAPTIONS(scenes, torch.full((200,), style), room)
    ids = [[id_ for id_ in row if id_ != NONE] for row in rows.tolist()]
    return scenes, styles.tolist(), ids


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
    assert max(map(len, written(NORMAL, 999)[2])) <= CAPTIONS.longest_listing(10)
