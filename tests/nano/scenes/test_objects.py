"""The objects of the nano checkpoint: every word means one thing, and the committed list is the generated one."""

import json
from collections import Counter

import numpy as np
import pytest

from bench.nano.adapter.data import SOURCE
from bench.nano.scenes.distractors import COUNT, draw_distractors
from bench.nano.scenes.english import article, join_list, pluralize
from bench.nano.scenes.objects import OBJECTS_JSON, index_of, load_objects, parse_objects, to_json
from bench.nano.scenes.sprites import FONT, PEOPLE, STRANGERS, load_sheet, render_sprites, save_sheet

PROMISED = """
banana, red apple, pear, strawberry, watermelon, carrot, pizza, hamburger, doughnut, cake, dog, cat, panda, frog, fish,
butterfly, bird, horse, car, bus, bicycle, rocket, helicopter, sailboat, airplane, train, sunflower, cactus, tree,
balloon, key, hammer, camera, guitar, books, top hat, umbrella, teddy bear, soccer ball, basketball, clock, cup, chair,
laptop, telephone, light bulb, scissors, star, heart
"""
COLOURS = "red orange yellow green blue purple brown black white"

needs_font = pytest.mark.skipif(not FONT.exists(), reason="Noto Color Emoji is not installed")


def test_committed_list_is_what_the_source_makes():
    assert OBJECTS_JSON.read_text(encoding="utf-8") == to_json(load_objects())


def test_json_fields():
    entries = json.loads(OBJECTS_JSON.read_text(encoding="utf-8"))
    assert len(entries) >= 220
    for entry in entries:
        assert set(entry) == {"codepoint", "emoji", "name", "plural", "synonyms", "category"}
        assert "".join(chr(int(code[2:], 16)) for code in entry["codepoint"].split()) == entry["emoji"]
        assert all(word == word.lower().strip() and word for word in [entry["name"], *entry["synonyms"]])


@pytest.mark.parametrize("name", [name.strip() for name in PROMISED.split(",")])
def test_promised_object_is_there(name):
    assert name in {item.name for item in load_objects()}


@pytest.mark.parametrize("colour", COLOURS.split())
def test_circles_and_squares_of_each_colour(colour):
    assert {f"{colour} circle", f"{colour} square"} <= {item.name for item in load_objects()}


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("apple", "red apple"),
        ("dog face", "dog"),
        ("Automobile", "car"),
        ("aeroplane", "airplane"),
        ("football", "soccer ball"),
        ("mobile phone", "cellphone"),
        ("MUGS", "cup"),
        ("mice", "mouse"),
    ],
)
def test_synonym_finds_its_object(word, name):
    index = index_of(word)
    assert index is not None
    assert load_objects()[index].name == name


def test_unknown_word_finds_nothing():
    assert index_of("toothbrush") is None


def test_no_word_names_two_objects():
    owners = Counter(word for item in load_objects() for word in {*item.names, *item.plurals})
    assert [word for word, count in owners.items() if count > 1] == []
    emojis = [item.emoji for item in load_objects()]
    assert len(set(emojis)) == len(emojis)


@pytest.mark.parametrize(
    "table",
    [
        "# food\n🍌 | banana | fruit\n🍎 | red apple | fruit",
        "# food\n🍌 | banana |\n🍎 | bananas |",
        "# food\n🍌 | banana | yellow one, yellow one",
    ],
)
def test_shared_word_is_refused(table):
    with pytest.raises(ValueError, match=r"names both|repeated"):
        parse_objects(table)


@pytest.mark.parametrize(
    ("singular", "plural"),
    [
        ("banana", "bananas"),
        ("box", "boxes"),
        ("cherry", "cherries"),
        ("key", "keys"),
        ("bag of money", "bags of money"),
        ("maple leaf", "maple leaves"),
        ("computer mouse", "computer mice"),
        ("scissors", "scissors"),
        ("fish", "fish"),
        ("wine glass", "wine glasses"),
    ],
)
def test_plural(singular, plural):
    assert pluralize(singular) == plural


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [("apple", "an"), ("banana", "a"), ("hourglass", "an"), ("unicorn", "a"), ("umbrella", "an"), ("ufo", "a")],
)
def test_article(phrase, expected):
    assert article(phrase) == expected


def test_list_in_running_text():
    assert [join_list("abc"[:count]) for count in range(4)] == ["", "a", "a and b", "a, b and c"]


@needs_font
def test_every_object_fills_its_sprite():
    sprites = render_sprites(load_objects(), size=64)
    assert sprites.shape == (len(load_objects()), 64, 64, 4)
    visible = sprites[..., 3] > 0
    rows, columns = visible.any(axis=2), visible.any(axis=1)
    assert (np.maximum(rows.sum(axis=1), columns.sum(axis=1)) >= 60).all()
    assert not visible[:, [0, -1]].any()
    assert not visible[:, :, [0, -1]].any()


@needs_font
def test_no_two_objects_are_the_same_image():
    # A code point that the font lacks shows as the same box as every other one.
    sprites = render_sprites(load_objects(), size=32)
    assert len({sprite.tobytes() for sprite in sprites}) == len(sprites)


def test_strangers_are_no_objects():
    groceries = parse_objects(SOURCE.read_text(encoding="utf-8"))  # of the shelf adapter, which is to find them
    known = {item.emoji[0] for item in (*load_objects(), *groceries)}
    strangers = STRANGERS + PEOPLE
    assert not known & set(strangers)
    assert len(set(strangers)) == len(strangers)


@pytest.mark.long
@needs_font
def test_sheet_gives_the_sprites_back(tmp_path):
    save_sheet(tmp_path / "sheet.png", size=32)
    objects, distractors = load_sheet(tmp_path / "sheet.png", size=32)
    np.testing.assert_array_equal(objects, render_sprites(load_objects(), size=32))
    np.testing.assert_array_equal(distractors[:COUNT], draw_distractors(32))
    # A code point that the font lacks shows as the same box as every other one.
    assert len({sprite.tobytes() for sprite in distractors}) == COUNT + len(STRANGERS) + 2 * len(PEOPLE)
    with pytest.raises(ValueError, match="make it anew"):
        load_sheet(tmp_path / "sheet.png", size=64)
