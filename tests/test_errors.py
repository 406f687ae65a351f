import pickle

import pytest

from photonlite import errors
from photonlite.errors import (
    GrammarBusyError,
    GrammarError,
    GrammarTimeoutError,
    GrammarTooLargeError,
    InputError,
    PhotonliteError,
    SchemaError,
)

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PhotonliteError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_can_be_pickled(kind: type[PhotonliteError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what, which limit, what to do")))

    assert type(error) is kind
    assert str(error) == "what, which limit, what to do"


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_in_the_documented_tree(kind: type[PhotonliteError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")


def test_a_schema_error_keeps_its_keyword_and_place() -> None:
    error = pickle.loads(pickle.dumps(SchemaError("no", "multipleOf", "/properties/count")))

    assert (error.keyword, error.where) == ("multipleOf", "/properties/count")
    assert (SchemaError("no").keyword, SchemaError("no").where) == ("", "")


def test_grammar_errors_are_input_errors() -> None:
    for kind in (SchemaError, GrammarTooLargeError, GrammarTimeoutError, GrammarBusyError):
        assert issubclass(kind, GrammarError)
    assert issubclass(GrammarError, InputError)
    assert issubclass(GrammarTimeoutError, TimeoutError)
