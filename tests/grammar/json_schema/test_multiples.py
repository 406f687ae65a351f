import random
from decimal import Decimal

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photonlite.errors import GrammarError, SchemaError
from photonlite.grammar.automata.dfa import Dfa, compile_dfa
from photonlite.grammar.json_schema.multiples import multiples
from photonlite.grammar.json_schema.numbers import Edge
from photonlite.grammar.json_schema.scalars import number_of
from tests.grammar.vocabularies import accepts

CASES = settings(derandomize=True, database=None)
STEPS = st.sampled_from([2, 3, 4, 5, 7, 10, 12, 20, 25, 60, 100, 125, 250, 1000, 1024])
FRACTIONS = st.sampled_from(["0.5", "0.25", "0.125", "2.5", "1.5", "12.5", "0.75", "1", "2", "10"])
DECIMALS = st.sampled_from(["0.1", "0.01", "0.001", "0.05", "0.2", "0.3", "1.1", "0.0005", "1e-7"])


def compiled(step: Decimal, low: Edge | None, high: Edge | None, *, whole: bool) -> Dfa | None:
    found = multiples(step, low, high, whole=whole)
    return None if found is None else compile_dfa(found.text, native=True)


@settings(CASES, max_examples=60)
@given(STEPS, st.integers(-2500, 2500), st.integers(0, 2500), st.booleans(), st.booleans())
def test_whole_multiples_of_a_range(step: int, low: int, size: int, above: bool, below: bool) -> None:
    schema = {"type": "integer", "multipleOf": step}
    schema |= {"exclusiveMinimum" if above else "minimum": low, "exclusiveMaximum" if below else "maximum": low + size}
    dfa = compiled(Decimal(step), Edge(Decimal(low), above), Edge(Decimal(low + size), below), whole=True)
    judge = jsonschema.Draft202012Validator(schema)

    for number in {*range(low - 12, low + 30), *range(low + size - 30, low + size + 12), *range(-30, 30)}:
        assert (dfa is not None and accepts(dfa, str(number).encode())) == judge.is_valid(number), number
    for text in ("-0", "00", "010", "-", "", "1e1", "20.0"):
        assert dfa is None or not accepts(dfa, text.encode())


@pytest.mark.parametrize("step", [2, 4, 5, 10, 250, 1000])
def test_whole_multiples_without_bounds(step: int) -> None:
    dfa = compiled(Decimal(step), None, None, whole=True)
    assert dfa is not None
    for near in (0, 10**17, -(10**17), 98_000, -98_000):
        for number in range(near - 40, near + 1040, 1):
            assert accepts(dfa, str(number).encode()) == (number % step == 0), number
    half = compiled(Decimal(step), Edge(Decimal(10**6)), None, whole=True)
    assert half is not None
    assert [accepts(half, str(number).encode()) for number in (0, 10**6 - step, 10**6, 10**6 + step)] == [
        False,
        False,
        10**6 % step == 0,
        10**6 % step == 0,
    ]


@pytest.mark.parametrize(("step", "right"), [("2.5", (0, 5, -10)), ("0.5", (0, 1, 2, 3)), ("0.3", (0, 3, -6))])
def test_whole_numbers_may_be_multiples_of_a_fraction(step: str, right: tuple[int, ...]) -> None:
    dfa = compiled(Decimal(step), Edge(Decimal(-10)), Edge(Decimal(10)), whole=True)
    assert dfa is not None
    judge = [number for number in range(-10, 11) if accepts(dfa, str(number).encode())]
    assert set(right) <= set(judge)
    assert all(Decimal(number) % Decimal(step) == 0 for number in judge)


@settings(CASES, max_examples=60)
@given(
    FRACTIONS | DECIMALS, st.integers(-3000, 3000), st.integers(0, 40), st.sampled_from([1, 10, 1000]), st.booleans()
)
def test_multiples_of_decimals(step: str, low: int, size: int, unit: int, exclusive: bool) -> None:
    one, first, last = Decimal(step), Decimal(low) / unit, Decimal(low + size) / unit
    dfa = compiled(one, Edge(first, exclusive), Edge(last, exclusive), whole=False)
    begin = int(first / one) - 3

    for number in (one * (4 * begin + k) / 4 for k in range(60)):
        text = f"{number.normalize():f}" if number else "0"
        inside = first < number < last if exclusive else first <= number <= last
        assert (dfa is not None and accepts(dfa, text.encode())) == (inside and number % one == 0), text


def test_prices_without_bounds() -> None:
    for step, cents in (("0.01", 1), ("0.05", 5), ("0.25", 25)):
        dfa = compiled(Decimal(step), None, None, whole=False)
        assert dfa is not None
        for number in range(-1300, 1300):
            spelled = f"{Decimal(number) / 100:f}"
            assert accepts(dfa, spelled.encode()) == (number % cents == 0), spelled
        assert not any(accepts(dfa, text) for text in (b"1.001", b"01", b"-0", b".5", b"1.", b"1.255"))
        assert all(accepts(dfa, text) for text in (b"3", b"3.0", b"0.5", b"123456789.75"))


def test_what_is_written_fits_the_validators() -> None:
    class Priced(pydantic.BaseModel):
        price: float = pydantic.Field(multiple_of=0.01, ge=0, le=1000)

    dfa = compile_dfa(number_of(Priced.model_json_schema()["properties"]["price"], "", whole=False).text, native=True)
    draw = random.Random(0)
    for _ in range(200):
        text = f"{Decimal(draw.randrange(100_000)) / 100:f}"
        assert accepts(dfa, text.encode())
        Priced.model_validate_json(f'{{"price":{text}}}')


def test_other_multiples_need_bounds() -> None:
    for high in (None, Edge(Decimal(35_001))):
        with pytest.raises(GrammarError, match="at most 5000: give minimum and maximum"):
            multiples(Decimal(7), Edge(Decimal(0)), high, whole=True)
    assert multiples(Decimal(7), Edge(Decimal(0)), Edge(Decimal(34_999)), whole=True) is not None
    with pytest.raises(SchemaError, match="'multipleOf' at /a: multiples of 3 are listed"):
        number_of({"multipleOf": 3}, "/a", whole=True)
