import warnings

import pytest

from photonlite.errors import PromptError
from photonlite.skills.names import SeveralNamesWarning, clean_names, joins_names, warn_of_joined


def test_names_are_stripped_and_keep_their_order() -> None:
    assert clean_names(" red ball ") == ("red ball",)
    assert clean_names([" mug", "key "]) == clean_names(("mug", "key")) == ("mug", "key")
    assert clean_names(["black and white cat"]) == ("black and white cat",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "the list of objects is empty"),
        (["mug", " "], "the object at 1 of the list is empty"),
        (["mug", 3], "the object at 1 of the list is of type int"),
        (["x" * 1001], "the object at 0 of the list has 1001 characters, over the limit of 1000"),
        (["mug", "key", " mug "], "holds 'mug' twice"),
        ([str(number) for number in range(65)], "65 objects, over the limit of 64"),
        (None, "the object is missing"),
        ({"mug", "key"}, "the object is of type set: give text, or a list"),
        ({"mug": 1}, "the object is of type dict"),
        (b"mug", "the object is of type bytes"),
        ("", "the object is empty"),
    ],
)
def test_unusable_names_are_refused(names: object, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        clean_names(names)


def test_as_many_names_as_the_limit_are_taken() -> None:
    assert len(clean_names([str(number) for number in range(64)])) == 64


@pytest.mark.parametrize("name", ["banana,cup", "banana, cup", "banana and cup", "banana AND cup", "a and b, c"])
def test_names_in_one_text_are_recognised(name: str) -> None:
    assert joins_names(name)


@pytest.mark.parametrize("name", ["banana", "sand castle", "hand", "and", "brand and", "banana,", "Andean flute", ""])
def test_other_texts_are_one_name(name: str) -> None:
    assert not joins_names(name)


def test_python_shows_the_warning_once_for_a_line_whatever_the_names() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for number in range(3):
            warn_of_joined(f"banana, {number}", stacklevel=1)
        warn_of_joined("banana", stacklevel=1)
        warn_of_joined(["banana, cup"], stacklevel=1)

    assert [one.category for one in caught] == [SeveralNamesWarning]
    assert caught[0].filename == __file__
