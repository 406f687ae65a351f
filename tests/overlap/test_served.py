from types import SimpleNamespace

import pytest

from bench.overlap.served import Place, await_streams


def test_a_stream_that_fails_ends_the_wait_for_its_tokens() -> None:
    place = Place(lambda place: None)
    place.on_finish(SimpleNamespace(error=RuntimeError("the card is lost")))  # type: ignore[arg-type]

    with pytest.raises(RuntimeError, match="card is lost"):
        await_streams(lambda: False, [place])
