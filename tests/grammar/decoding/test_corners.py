import pytest

from photonlite.grammar.decoding.corners import CornerIds, CornerItem, CornersFormat, CornersGrammar
from photonlite.request import Token

END, PLACE, CODE = 1, 10, 20
IDS = CornerIds(coordinates=(10, 11, 12, 13), codes=(20, 21), end=END)
MUG, PLATE, BIG, SEPARATOR = 30, 31, 32, 40


def form(*labels: tuple[int, ...], codes: int = 0) -> CornersFormat:
    more = tuple((*label, SEPARATOR) for label in labels)
    return CornersFormat(IDS, tuple(map(str, labels)), more, tuple((*label, END) for label in labels), codes)


def place(value: float = 0.5, probability: float = 1.0) -> Token:
    return Token(PLACE, (value,), probability, (0.9,))


def word(index: int, *scores: float) -> Token:
    return Token(index, scores=scores)


def taken(grammar: CornersGrammar, *tokens: Token) -> CornersGrammar:
    for token in tokens:
        grammar.accept(token)
    return grammar


def test_a_list_may_be_empty_and_an_item_has_four_coordinates_and_its_label() -> None:
    grammar = form((MUG,)).grammar((), 20, 9)
    assert set(grammar.allowed.ids or ()) == {*IDS.coordinates, END}
    assert (grammar.allowed.coordinate, grammar.allowed.end) == (PLACE, END)
    assert taken(form((MUG,)).grammar((), 20, 9), Token(END)).finish_reason == "stop"

    for _ in range(4):
        taken(grammar, place())
        assert grammar.allowed.end is None
    assert grammar.allowed.forced == MUG
    taken(grammar, Token(MUG))
    assert grammar.allowed.ids == grammar.allowed.scored == (SEPARATOR, END)
    assert taken(grammar, word(SEPARATOR)).allowed.forced == PLACE  # behind a separator there is an item
    taken(grammar, *[place()] * 4, Token(MUG), Token(END))
    assert grammar.finish_reason == "stop"


def test_codes_stand_between_coordinates_and_label() -> None:
    grammar = taken(form((MUG,), codes=2).grammar((), 20, 9), *[place()] * 4)
    assert grammar.allowed.ids == IDS.codes
    taken(grammar, Token(CODE), Token(CODE + 1))
    assert grammar.allowed.forced == MUG
    with pytest.raises(ValueError, match="not allowed"):
        grammar.accept(Token(CODE))

    tokens = [*[place()] * 4, Token(CODE), Token(CODE + 1), Token(MUG), Token(END)]
    assert [item.codes for item in grammar.read(tokens)] == [(CODE, CODE + 1)]


def test_the_model_chooses_among_several_labels() -> None:
    grammar = taken(form((MUG,), (PLATE,), (MUG, BIG)).grammar((), 30, 9), *[place()] * 4)
    assert set(grammar.allowed.ids or ()) == {MUG, PLATE}
    taken(grammar, word(MUG))
    assert set(grammar.allowed.ids or ()) == {SEPARATOR, BIG, END}
    assert taken(grammar, word(BIG)).allowed.ids == (SEPARATOR, END)


@pytest.mark.parametrize("labels", [[(MUG,)], [(MUG,), (PLATE,), (MUG, BIG)]])
def test_the_last_item_ends_the_list_when_its_label_is_known(labels: list[tuple[int, ...]]) -> None:
    grammar = taken(form(*labels).grammar((), 30, 2), *[place()] * 4, word(MUG), word(SEPARATOR), *[place()] * 4)
    if len(labels) > 1:
        assert grammar.finish_reason is None
        taken(grammar, word(MUG), word(SEPARATOR))
    assert grammar.finish_reason == "max_objects"


def test_scores_are_of_presence_and_of_the_label() -> None:
    grammar = form((MUG,), (PLATE,)).grammar((), 30, 9)
    tokens = [place(probability=0.8), *[place()] * 3, word(PLATE, 0.25, 0.75), word(SEPARATOR, 0.6, 0.4)]
    tokens += [*[place()] * 4, word(MUG, 0.5, 0.5), word(END, 0.1, 0.9)]

    first, second = taken(grammar, *tokens).form.grammar((), 30, 9).read(tokens)

    assert isinstance(first, CornerItem)
    assert (first.label, second.label) == (str((PLATE,)), str((MUG,)))
    assert first.corners[0].probability == pytest.approx(0.8 * 0.75)
    assert second.corners[0].probability == pytest.approx(0.6 * 0.5)
    assert [len(item.corners) for item in (first, second)] == [4, 4]


@pytest.mark.parametrize("kept", range(11))
def test_an_item_that_is_cut_short_is_left_out(kept: int) -> None:
    grammar = form((MUG,), (PLATE,)).grammar((), 30, 9)
    tokens = [*[place()] * 4, word(MUG, 0.5, 0.5), word(SEPARATOR, 0.5, 0.5), *[place()] * 4, word(MUG, 0.5, 0.5)]

    assert len(grammar.read(tokens[:kept])) == (kept >= 5)


@pytest.mark.parametrize("codes", [0, 3])
def test_the_budget_holds_the_longest_list(codes: int) -> None:
    one = form((MUG,), (MUG, BIG), codes=codes)
    grammar = one.grammar((), one.budget(2, ()), 2)
    item = [*[place()] * 4, *[Token(CODE)] * codes, word(MUG), word(BIG)]

    taken(grammar, *item, word(SEPARATOR), *item)

    assert grammar.finish_reason == "max_objects"
    short = taken(one.grammar((), 6 + codes, 2), *item)
    assert short.finish_reason == "length"
