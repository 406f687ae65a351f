"""By what a store knows the pages up to an image's end, and which pages these are."""

import dataclasses

import pytest

from photonlite.image_inputs import PrefixPages
from photonlite.request import IMAGE, Token
from photonlite.sequence import ImageSpan, Sequence
from tests.cache.sequences import NamedImage, manager_of, sequence

WORDS = tuple(range(10, 20))


def about(*parts: int | tuple[str, int], adapter: str = "", salt: str = "", page_size: int = 4) -> Sequence:
    """Name a prompt of words, and of images with their numbers of positions."""
    tokens: list[Token] = []
    spans: list[ImageSpan] = []
    for part in parts:
        if isinstance(part, int):
            tokens.append(Token(part))
        else:
            spans.append(ImageSpan(NamedImage(part[0]), len(tokens), part[1]))
            tokens += [IMAGE] * part[1]
    made = sequence(tokens, adapter=adapter)
    request = dataclasses.replace(made.request, cache_salt=salt)
    named = Sequence(made.number, request, made.sink, 0, inside=tuple(spans))
    manager_of(50, page_size).name(named)
    return named


def pages(asked: Sequence) -> list[PrefixPages]:
    found = [span.pages for span in asked.images]
    assert None not in found
    return [one for one in found if one is not None]


def test_images_inside_have_whole_pages_behind_those_before_them() -> None:
    first, second = pages(about(1, 2, 3, ("one", 6), 4, 5, ("other", 9), 6))

    assert first[1:] == (0, 2, 0, 8)  # it ends at 9
    assert second[1:] == (2, 5, 8, 20)  # at 20
    whole = about(1, 2, 3, ("one", 5), 4)
    assert pages(whole)[0][1:] == (0, 2, 0, 8)


def test_an_image_that_fills_no_page_has_none() -> None:
    short, behind = about(("one", 3), 1, 2, ("other", 2), 3).images

    assert short.pages is None
    assert behind.pages is not None
    assert behind.pages[1:] == (0, 1, 0, 4)


def test_a_leading_image_has_the_page_in_which_it_ends_too() -> None:
    leading = sequence(WORDS, "one", prefix=6)
    manager_of(50).name(leading)

    assert leading.images[0].pages is not None
    assert leading.images[0].pages[1:] == (0, 2, 0, 6)


def test_without_a_prefix_cache_they_are_known_all_the_same() -> None:
    leading = [sequence(WORDS, "one", prefix=6) for _ in range(2)]
    manager_of(50).name(leading[0])
    manager_of(50, prefix_caching=False).name(leading[1])

    assert leading[0].images[0].pages == leading[1].images[0].pages is not None
    assert leading[1].links == ()


def test_a_prompt_that_attends_in_both_directions_has_none() -> None:
    whole = sequence(WORDS, "one", prefix=6)
    both = Sequence(whole.number, whole.request, whole.sink, 6, whole.image, prompt_block=10)
    manager_of(50).name(both)

    assert both.images[0].pages is None


SECOND = (1, 2, ("one", 6), 3, ("other", 9))


def test_what_follows_an_image_does_not_change_its_key() -> None:
    assert pages(about(*SECOND, 4))[1].key == pages(about(*SECOND, 5, 6, ("third", 8), 7))[1].key
    assert pages(about(*SECOND, 4))[0].key == pages(about(*SECOND[:3], 8, 8))[0].key


@pytest.mark.parametrize(
    "changed",
    [
        about(1, 7, *SECOND[2:], 4),  # another word in front
        about(1, *SECOND[2:], 4),  # one less, so that it stands elsewhere
        about(*SECOND[:2], ("another", 6), *SECOND[3:], 4),  # another image in front, with as many positions
        about(*SECOND[:3], 7, SECOND[4], 4),  # another word between
        about(*SECOND[:4], ("one", 9), 4),  # another image
        about(*SECOND[:2], ("other", 6), 3, ("one", 9), 4),  # exchanged
        about(*SECOND, 4, adapter="shelf"),
        about(*SECOND, 4, salt="tenant"),
        about(*SECOND, 4, page_size=3),
    ],
)
def test_all_that_numbers_depend_on_changes_the_key(changed: Sequence) -> None:
    assert pages(changed)[1].key != pages(about(*SECOND, 4))[1].key
