import traceback
import weakref

import pytest

from photonlite.engine.faults import without_frames


class Weights:
    pass


def fail(held: list["weakref.ref[Weights]"]) -> None:
    weights = Weights()
    held.append(weakref.ref(weights))
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904 - a context, and no cause
    except ValueError as cause:
        raise RuntimeError("third") from cause


def test_an_error_keeps_no_frames_of_its_causes_but_notes_their_tracebacks() -> None:
    held: list[weakref.ref[Weights]] = []
    with pytest.raises(RuntimeError) as caught:
        fail(held)
    error = caught.value
    del caught

    assert without_frames(error) is error
    assert held[0]() is None
    text = "".join(traceback.format_exception(error))
    assert text.count("in fail") == 2
    assert "second" in text


def test_an_error_that_is_its_own_cause_is_handled() -> None:
    error = ValueError("round")
    error.__cause__ = other = KeyError()
    other.__cause__ = error

    assert without_frames(error).__cause__ is other
