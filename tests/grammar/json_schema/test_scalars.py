import re

import pytest

from photonlite.grammar.json_schema.scalars import FORMATS
from photonlite.grammar.regex.parser import parse_regex
from photonlite.grammar.regex.rewrite import lengths


@pytest.mark.parametrize("name", FORMATS)
def test_a_text_of_any_format_ends(name: str) -> None:
    longest = lengths(parse_regex(FORMATS[name])).high
    assert longest is not None
    assert longest <= 200


@pytest.mark.parametrize(
    ("address", "right"),
    [
        ("ann@example.com", True),
        ("ann.b-c+shop@mail.example.co.uk", True),
        ("a.b.c@x.org", True),
        ("christopherjohnson@gmail.com", True),
        ("customerservice24h@shop.de", True),
        ("pr@mail.international-chamber-of-commerce.org", True),
        ("a@vermoegensberatung.versicherung", True),
        ("a@xn--bcher-kva.example", True),
        ("a@mail.cs.ox.ac.uk", True),
        ("a.b.c.d.e@x.org", True),
        ("a" * 32 + "@" + "b" * 40 + ".museum", True),
        ("a" * 33 + "@b.com", False),
        ("a@" + "b" * 41 + ".com", False),
        ("a@" + "b.c" * 21 + ".com", False),
        ("a..b@b.com", False),
        (".a@b.com", False),
        ("a.@b.com", False),
        ("a@-b.com", False),
        ("a@b-.com", False),
        ("a@b..com", False),
        ("a@b", False),
        ("A@b.com", False),
    ],
)
def test_addresses(address: str, right: bool) -> None:
    assert bool(re.fullmatch(FORMATS["email"], address)) == right
