import base64

import pytest

from photonlite.server.bodies.reading import MAX_VALUES
from tests.server.asgi import Exchange, post
from tests.server.fake import FakeModel
from tests.server.parts import PNG, server
from tests.serving import run

KIND = {"content-type": "image/png"}


def test_a_declared_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async def main() -> None:
        headers = KIND | {"content-length": "11"}
        async with Exchange(server(max_body_bytes=10), "/v1/caption", None, headers) as exchange:
            await exchange.until(lambda: len(exchange.messages) > 1)
            assert (exchange.status, exchange.code) == (413, "body_too_large")

    run(main())


def test_an_undeclared_body_over_the_limit_is_refused() -> None:
    for headers in (KIND, KIND | {"content-length": "5"}):
        answer = run(post(server(max_body_bytes=10), "/v1/caption", [b"12345", b"67890", b"1"], headers))
        assert (answer.status, answer.code) == (413, "body_too_large")


@pytest.mark.parametrize("announced", ["3", str(len(PNG) + 1), "-1", "+5", "1e3", "²", "9" * 40, ""])
def test_a_body_of_another_length_than_declared_is_refused(announced: str) -> None:
    fake = FakeModel()
    answer = run(post(server(fake), "/v1/caption", PNG, KIND | {"content-length": announced}))
    assert (answer.status, answer.code) == (400, "wrong_content_length")
    assert answer.headers["connection"] == "close"
    assert fake.calls == []


def test_a_body_in_many_pieces_is_one_image() -> None:
    fake = FakeModel()
    pieces = [PNG[start : start + 7] for start in range(0, len(PNG), 7)]
    assert run(post(server(fake), "/v1/caption", pieces, KIND | {"content-length": str(len(PNG))})).status == 200
    assert fake.calls[0].image == PNG


def test_a_slow_body_is_refused() -> None:
    async def main() -> None:
        app = server(body_timeout_s=0.001)
        async with Exchange(app, "/v1/caption", None, KIND) as exchange:
            await exchange.until(lambda: len(exchange.messages) > 1)
            assert (exchange.status, exchange.code) == (408, "body_timeout")
            assert exchange.headers["connection"] == "close"
            assert app.state.ingress.limiter.open == 0

    run(main())


def test_a_client_that_leaves_within_its_body_releases_its_permit() -> None:
    async def main() -> None:
        app = server()
        async with Exchange(app, "/v1/caption", None, KIND) as exchange:
            exchange.leave()
            await exchange.finish()
        assert exchange.status == 499
        assert app.state.ingress.limiter.open == 0

    run(main())


def test_a_compressed_body_is_refused() -> None:
    answer = run(post(server(), "/v1/caption", b"x", KIND | {"content-encoding": "gzip"}))
    assert (answer.status, answer.code) == (415, "unsupported_encoding")
    assert run(post(server(), "/v1/caption", PNG, KIND | {"content-encoding": "Identity"})).status == 200


def test_a_body_larger_than_the_memory_of_all_requests_is_refused() -> None:
    answer = run(post(server(max_open_bytes=100), "/v1/caption", [b"x" * 60, b"x" * 60], KIND))
    assert (answer.status, answer.code) == (413, "request_too_large")


@pytest.mark.parametrize("values", ["[]", "0", '{"a":0}', "[" * 100 + "]" * 100])
@pytest.mark.parametrize("before", ["", '"a;base64,",', '"data:image/png;base64,' + "A" * 9 + '",'])
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(values: str, before: str) -> None:
    count = MAX_VALUES // (values.count("[") + 1) + 1
    body = f'{{"question": [{before}{",".join([values] * count)}]}}'.encode()
    answer = run(post(server(), "/v1/query", body, {"content-type": "application/json"}))
    assert (answer.status, answer.code) == (422, "too_many_values")


def test_integers_that_take_long_to_read_are_refused() -> None:
    body = f'{{"question": [{",".join(["1" * 4000] * 9)}]}}'.encode()
    answer = run(post(server(), "/v1/query", body, {"content-type": "application/json"}))
    assert (answer.status, answer.code) == (400, "invalid_json")
    assert "digits" in answer.json["error"]["message"]


@pytest.mark.parametrize("field", ["", "a", "a=%41"])
def test_a_query_string_of_very_many_fields_is_refused_before_it_is_parsed(field: str) -> None:
    answer = run(post(server(), f"/v1/caption?{'&'.join([field] * 5000)}", PNG, KIND))
    assert (answer.status, answer.code) == (400, "invalid_query")
    assert "256" in answer.json["error"]["message"]


def test_base64_and_the_words_of_a_question_are_no_values() -> None:
    fake = FakeModel()
    words = "[," * (MAX_VALUES // 2 - 10)
    body = {"image_url": "data:image/png;base64," + base64.b64encode(PNG).decode(), "question": words}
    assert run(post(server(fake, max_prompt_characters=10**6), "/v1/query", body)).status == 200
    assert fake.calls[0].arguments["question"] == words
