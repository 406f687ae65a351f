import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photonlite.grammar.automata.dfa import Dfa, compile_dfa
from photonlite.grammar.json_schema.numbers import Edge, integers, numbers
from photonlite.grammar.regex.fragment import Fragment
from tests.grammar.vocabularies import accepts

BOUNDS = st.integers(-1200, 1200) | st.sampled_from([0, 9, 10, 99, 100, -1, -10, 10**17, -(10**18)])
DECIMALS = st.builds(lambda digits, point: Decimal(digits).scaleb(-point), st.integers(-3000, 3000), st.integers(0, 3))
STEPS = st.sampled_from([Decimal(0), *(Decimal(sign).scaleb(-point) for sign in (1, -1) for point in range(6))])


def compiled(part: Fragment | None) -> Dfa | None:
    return None if part is None else compile_dfa(part.text, native=True)


@settings(max_examples=60, derandomize=True, database=None)
@given(st.none() | BOUNDS, st.none() | BOUNDS)
def test_integers_of_a_range(low: int | None, high: int | None) -> None:
    dfa = compiled(integers(low, high))
    near = {bound + step for bound in (low, high) if bound is not None for step in (-11, -10, -2, -1, 0, 1, 2, 10, 11)}

    for number in near | {*range(-130, 130)}:
        wanted = (low is None or low <= number) and (high is None or number <= high) and abs(number) < 10**18
        assert (dfa is not None and accepts(dfa, str(number).encode())) == wanted, number
    for text in ("-0", "00", "01", "1.0", "1e1", "+1", ""):
        assert dfa is None or not accepts(dfa, text.encode())


@pytest.mark.long
@settings(max_examples=150, derandomize=True, database=None)
@given(st.none() | DECIMALS, st.none() | DECIMALS, st.booleans(), st.booleans(), st.lists(st.tuples(DECIMALS, STEPS)))
def test_numbers_of_a_range(
    low: Decimal | None, high: Decimal | None, above: bool, below: bool, drawn: list[tuple[Decimal, Decimal]]
) -> None:
    edges = [None if bound is None else Edge(bound, exclusive) for bound, exclusive in ((low, above), (high, below))]
    dfa = compiled(numbers(*edges))
    near = [(bound, step) for bound in (low, high) if bound is not None for step in (0, Decimal("0.001"), -1)]

    for value in (base + step for base, step in (*drawn, *near)):
        text = f"{value:f}" if value else f"{abs(value):f}"
        wanted = low is None or (value > low if above else value >= low)
        wanted = wanted and (high is None or (value < high if below else value <= high))
        assert (dfa is not None and accepts(dfa, text.encode())) == wanted, text


def test_numbers_are_json() -> None:
    dfa = compiled(numbers(None, None))
    assert dfa is not None

    for text in ("0", "-1", "7.5", "0.000000000000001", "999999999999999.999999999999999", "10.0"):
        assert accepts(dfa, text.encode())
        json.loads(text)
    for text in ("-0", "01", "1.", ".5", "1e5", "+1", "1" * 16, "0." + "1" * 16, "NaN", ""):
        assert not accepts(dfa, text.encode())


@pytest.mark.parametrize("bound", [0.30000000000000004, 1000.5, 123456789012345.0, 0.1, 5.0])
def test_no_number_is_rounded_onto_a_bound_that_it_must_not_reach(bound: float) -> None:
    edge = Edge(Decimal(repr(bound)), exclusive=True)
    above, below = compiled(numbers(edge, None)), compiled(numbers(None, edge))
    assert above is not None
    assert below is not None

    for digits in range(1, 18):
        for sign in (1, -1):
            text = f"{edge.value + sign * Decimal(1).scaleb(-digits):f}"
            for dfa, fits in ((above, float(text) > bound), (below, float(text) < bound)):
                assert not accepts(dfa, text.encode()) or fits


@pytest.mark.parametrize("value", [10**15, 10**18, 10**400])
def test_what_is_too_long_to_be_written_is_none(value: int) -> None:
    assert numbers(Edge(Decimal(value)), None) is None
    assert numbers(None, Edge(Decimal(-value))) is None
    assert numbers(None, Edge(Decimal(value))) is not None
    assert integers(10**18, None) is None
    assert integers(3, 2) is None
    assert numbers(Edge(Decimal(1), exclusive=True), Edge(Decimal(1))) is None


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-1, None), (None, 0), (0, 1)])
def test_a_bounded_zero_has_no_sign(low: int | None, high: int | None) -> None:
    dfa = compiled(numbers(*(None if bound is None else Edge(Decimal(bound)) for bound in (low, high))))
    assert dfa is not None

    assert [accepts(dfa, text) for text in (b"0", b"0.0", b"-0", b"-0.0")] == [True, True, False, False]
