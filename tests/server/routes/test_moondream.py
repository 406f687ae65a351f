import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

from photonlite.errors import DeadlineError, StepError, TruncatedError
from photonlite.results import Answer, Caption, Detections, Points, Segments
from tests.server.asgi import Exchange, post
from tests.server.fake import BOX, METRICS, OUTLINE, FakeModel
from tests.server.parts import DATA_URI, PNG, server
from tests.serving import run

ASKED: dict[str, dict[str, Any]] = {
    "caption": {"length": "short"},
    "query": {"question": "why?"},
    "detect": {"object": "mug"},
    "point": {"object": "mug", "spatial_refs": [[0.5, 0.5]]},
    "segment": {"object": "mug"},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "caption": {"caption": "two of them"},
    "query": {"answer": "two of them"},
    "detect": {"objects": [{**BOX, "label": "mug", "score": 0.5}]},
    "point": {"points": [{"x": 0.5, "y": 0.5, "label": "mug", "score": 0.5}]},
    "segment": {
        "segments": [{**OUTLINE, "label": "mug", "score": 0.5}],
        "path": OUTLINE["path"],
        "bbox": BOX,
    },
}
WHOLE = {"metrics": METRICS.to_dict(), "finish_reason": "stop", "truncated": False}
BOUNDARY = "xxBOUNDARYxx"


def form(fields: dict[str, str], file: bytes | None = PNG) -> tuple[bytes, dict[str, str]]:
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    if file is not None:
        parts.append(b'Content-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n' + file)
    mark = f"--{BOUNDARY}".encode()
    body = b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"
    return body, {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def events(body: bytes) -> list[dict[str, Any]]:
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize("skill", ASKED)
def test_json_is_answered_with_the_keys_of_the_skill_and_the_outcome(skill: str) -> None:
    fake = FakeModel()

    answer = run(post(server(fake), f"/v1/{skill}", {"image_url": DATA_URI, "model": "fake", **ASKED[skill]}))

    assert answer.status == 200
    known = {**WHOLE, "request_id": answer.headers["x-request-id"]}
    assert answer.json == {**ANSWERS[skill], **known}
    assert fake.calls[0].image == PNG
    assert fake.calls[0].skill == skill
    assert {name: fake.calls[0].arguments[name] for name in ASKED[skill]} == ASKED[skill]


@pytest.mark.parametrize("skill", ASKED)
def test_strict_reaches_the_model_and_an_answer_that_was_cut_short_is_told(skill: str) -> None:
    fake = FakeModel()
    app = server(fake)
    body = {"image_url": DATA_URI, **ASKED[skill]}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in ASKED[skill].items()}
    cut = {"caption": Caption("a"), "query": Answer("a"), "detect": Detections([]), "point": Points([])}
    fake.results[skill] = result = {**cut, "segment": Segments([])}[skill]
    result.finish_reason = "length"

    answer = run(post(app, f"/v1/{skill}", body))
    assert (answer.json["finish_reason"], answer.json["truncated"]) == ("length", True)
    fake.error = TruncatedError("the answer was cut short")
    for given, headers in ((body | {"strict": True}, {}), form(texts | {"strict": "true"})):
        refused = run(post(app, f"/v1/{skill}", given, headers))
        assert (refused.status, refused.code) == (422, "truncated")
    assert [call.strict for call in fake.calls] == [False, True, True]
    wrong = run(post(app, f"/v1/{skill}", body | {"strict": 1}))
    assert (wrong.status, wrong.code) == (422, "invalid_field")


@pytest.mark.parametrize("skill", ASKED)
def test_a_form_and_a_raw_image_ask_for_the_same_as_json(skill: str) -> None:
    fake = FakeModel()
    app = server(fake)
    settings = {"temperature": 0.5}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in ASKED[skill].items()}
    texts["settings"] = json.dumps(settings)
    query = "&".join(f"{name}={value}".replace(" ", "%20") for name, value in texts.items())

    async def ask() -> list[int]:
        body, headers = form(texts)
        return [
            (await post(app, f"/v1/{skill}", {"image_url": DATA_URI, "settings": settings, **ASKED[skill]})).status,
            (await post(app, f"/v1/{skill}", body, headers)).status,
            (await post(app, f"/v1/{skill}?{query}", PNG, {"content-type": "image/png"})).status,
            (await post(app, f"/v1/{skill}?{query}", PNG, {"content-type": "application/octet-stream"})).status,
        ]

    assert run(ask()) == [200] * 4
    assert [call.image for call in fake.calls] == [PNG] * 4
    assert [call.arguments for call in fake.calls] == [fake.calls[0].arguments] * 4


@pytest.mark.parametrize("skill", ["detect", "point", "segment"])
@pytest.mark.parametrize("names", ['["mug", "red cup"]', ' ["mug","red cup"]'])
def test_several_names_may_be_a_list_in_json(skill: str, names: str) -> None:
    fake = FakeModel()
    app, (body, headers) = server(fake), form({"object": names})

    assert run(post(app, f"/v1/{skill}", body, headers)).status == 200
    assert run(post(app, f"/v1/{skill}?object={quote(names)}", PNG, {"content-type": "image/png"})).status == 200
    assert [call.arguments["object"] for call in fake.calls] == [["mug", "red cup"]] * 2


@pytest.mark.parametrize("names", ['["mug"', "[mug, cup]", '["mug", 5]', "[]", '["mug", NaN]'])
def test_a_list_of_names_that_is_not_right_is_no_name(names: str) -> None:
    body, headers = form({"object": names})
    answer = run(post(server(), "/v1/detect", body, headers))
    assert (answer.status, answer.code) == (422, "invalid_field")


@pytest.mark.parametrize("path", ["/v1/detect", "/v1/chat/completions", "/v1/adapters"])
def test_a_query_string_beside_a_body_of_fields_is_refused(path: str) -> None:
    fake = FakeModel()
    bodies: list[Any] = [({"object": "mug", "image_url": DATA_URI}, {}), form({"object": "mug"})]
    for body, headers in bodies[: 1 if "chat" in path else 2]:  # a chat takes no form
        answer = run(post(server(fake), f"{path}?tile=2x2", body, headers))
        assert (answer.status, answer.code) == (400, "invalid_query")
    assert fake.calls == []


def test_a_byte_order_mark_is_no_part_of_json() -> None:
    fake = FakeModel()
    body = b"\xef\xbb\xbf" + json.dumps({"image_url": DATA_URI, "object": "mug"}).encode()
    assert run(post(server(fake), "/v1/detect", body, {"content-type": "application/json"})).status == 200
    body, headers = form({"object": "\ufeffmug"})
    assert run(post(server(fake), "/v1/detect", body, headers)).status == 200
    assert [call.arguments["object"] for call in fake.calls] == ["mug"] * 2


def test_a_query_needs_no_image_and_everything_else_does() -> None:
    fake = FakeModel()
    app = server(fake)

    assert run(post(app, "/v1/query", {"question": "why?", "reasoning": True})).json["reasoning"] == {
        "text": "hm",
        "grounding": [],
    }
    assert run(post(app, "/v1/query?question=why", b"")).status == 200
    assert [call.image for call in fake.calls] == [None, None]
    refused = run(post(app, "/v1/caption", {}))
    assert (refused.status, refused.code) == (422, "missing_image")


def test_spatial_refs_may_be_objects_of_answers() -> None:
    fake = FakeModel()
    refs = [{**BOX, "label": "mug", "score": 0.5}, {"x": 0.5, "y": 0.5, "label": "mug"}, [0.5, 0.5]]
    body = {"image_url": DATA_URI, "object": "mug", "spatial_refs": refs}
    assert run(post(server(fake), "/v1/point", body)).status == 200
    assert fake.calls[0].arguments["spatial_refs"] == refs


def test_null_counts_as_left_out() -> None:
    fake = FakeModel()
    body = {"image_url": DATA_URI, "object": "mug", "settings": None, "model": None, "spatial_refs": None}
    assert run(post(server(fake), "/v1/point", body)).status == 200
    assert "spatial_refs" not in fake.calls[0].arguments


def test_nothing_outlined_is_an_empty_path() -> None:
    fake = FakeModel()
    fake.results["segment"] = Segments([])
    answer = run(post(server(fake), "/v1/segment", {"image_url": DATA_URI, "object": "mug"})).json
    assert (answer["segments"], answer["path"], answer["bbox"]) == ([], "", None)


@pytest.mark.parametrize("skill", ["caption", "query"])
def test_text_streams_as_chunks_and_ends_with_the_outcome(skill: str) -> None:
    fake = FakeModel()
    answer = run(post(server(fake), f"/v1/{skill}", {"image_url": DATA_URI, "stream": True, **ASKED[skill]}))

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, last = events(answer.body)
    assert chunks == [{"chunk": piece, "completed": False} for piece in fake.pieces]
    known = {**WHOLE, "request_id": answer.headers["x-request-id"]}
    assert last == {"chunk": "", "completed": True, **known}
    assert fake.cancelled == 0


def test_each_piece_is_sent_as_soon_as_it_is_there() -> None:
    async def main() -> None:
        fake = FakeModel()
        app = server(fake)
        fake.hang()
        body = json.dumps({"image_url": DATA_URI, "stream": True}).encode()
        async with Exchange(app, "/v1/caption", body, {"content-type": "application/json"}) as exchange:
            await exchange.until(lambda: b"two" in exchange.body)
            assert not exchange.task.done()
            fake.release()
            await exchange.finish()
            assert len(events(exchange.body)) == 4

    run(main())


def test_an_outline_streams_as_box_path_and_end() -> None:
    answer = run(post(server(), "/v1/segment", {"image_url": DATA_URI, "object": "mug", "stream": True}))
    box, delta, final = events(answer.body)
    assert box == {"type": "bbox", "bbox": BOX}
    assert delta == {"type": "path_delta", "chunk": OUTLINE["path"], "completed": False}
    assert (final["type"], final["path"], final["bbox"], final["completed"]) == ("final", OUTLINE["path"], BOX, True)


def test_errors_before_the_first_piece_have_their_status() -> None:
    fake = FakeModel(DeadlineError("too slow"))
    answer = run(post(server(fake), "/v1/caption", {"image_url": DATA_URI, "stream": True}))
    assert (answer.status, answer.code) == (504, "deadline_exceeded")


def test_later_errors_are_the_last_event_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeModel()
    fake.late_error = StepError("the device failed")
    app = server(fake)
    answer = run(post(app, "/v1/caption", {"image_url": DATA_URI, "stream": True}))

    assert answer.status == 200
    first, last = events(answer.body)
    assert first == {"chunk": fake.pieces[0], "completed": False}
    assert set(last) == {"error"}
    assert [record.exc_info and record.exc_info[1] for record in caplog.records if record.levelname == "ERROR"] == [
        fake.late_error
    ]
    assert last["error"]["code"] == "engine_failed"
    assert (app.state.ingress.limiter.open, app.state.ingress.limiter.bytes.used) == (0, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request(stream: bool) -> None:
    async def main() -> None:
        fake = FakeModel()
        app = server(fake)
        fake.hang()
        body = json.dumps({"image_url": DATA_URI, "stream": stream}).encode()
        async with Exchange(app, "/v1/caption", body, {"content-type": "application/json"}) as exchange:
            await fake.begun.wait()
            if stream:
                await exchange.until(lambda: b"two" in exchange.body)
            assert app.state.ingress.limiter.open == 1
            exchange.leave()
            await exchange.finish()
            assert fake.cancelled == 1
            await app.state.ingress.limiter.settled()
            assert app.state.ingress.limiter.bytes.used == 0

    run(main())


def test_a_server_that_gives_up_a_stream_cancels_it() -> None:
    async def main() -> None:
        fake = FakeModel()
        app = server(fake)
        fake.hang()
        body = json.dumps({"image_url": DATA_URI, "stream": True}).encode()
        async with Exchange(app, "/v1/caption", body, {"content-type": "application/json"}) as exchange:
            await exchange.until(lambda: b"two" in exchange.body)
            exchange.task.cancel()
            await asyncio.wait([exchange.task])
            assert (fake.cancelled, app.state.ingress.limiter.open) == (1, 0)

    run(main())


@pytest.mark.parametrize(
    ("skill", "body", "status", "code"),
    [
        ("detect", b"{", 400, "invalid_json"),
        ("detect", b"[]", 400, "invalid_json"),
        ("detect", b"\xff\xfe", 400, "invalid_json"),
        ("detect", b"[" * 50_000, 400, "invalid_json"),
        ("detect", b'{"object": NaN}', 400, "invalid_json"),
        ("detect", b'{"object": ' + b"9" * 5000 + b"}", 400, "invalid_json"),
        ("detect", b"", 400, "invalid_json"),
        ("detect", {}, 422, "missing_field"),
        ("detect", {"object": 5}, 422, "invalid_field"),
        ("detect", {"object": " "}, 422, "invalid_prompt"),
        ("detect", {"object": "\ud800"}, 422, "invalid_prompt"),
        ("detect", {"object": "mug", "question": "why?"}, 422, "unknown_field"),
        ("detect", {"object": "mug", "stream": True}, 422, "invalid_field"),
        ("detect", {"object": "mug", "stream": "yes"}, 422, "invalid_field"),
        ("detect", {"object": "mug", "settings": [1]}, 422, "invalid_field"),
        ("detect", {"object": "mug", "settings": {"heat": 1}}, 422, "invalid_settings"),
        ("detect", {"object": "mug", "settings": {"max_objects": 151}}, 422, "over_limit"),
        ("caption", {"settings": {"max_tokens": 1025}}, 422, "over_limit"),
        ("caption", {"settings": {"temperature": 10**400}}, 422, "invalid_settings"),
        ("caption", {"length": "huge"}, 422, "invalid_field"),
        ("query", {"question": "?" * 4001}, 422, "prompt_too_long"),
        ("point", {"object": "mug", "spatial_refs": [[0.5, 10**400]]}, 422, "invalid_field"),
        ("point", {"object": "mug", "spatial_refs": [[0.5]]}, 422, "invalid_field"),
        ("point", {"object": "mug", "spatial_refs": [{"x": 0.5}]}, 422, "invalid_field"),
        ("point", {"object": "mug", "spatial_refs": [{"x": 0.5, "y": 2}]}, 422, "invalid_field"),
    ],
)
def test_unusable_fields_are_refused(skill: str, body: Any, status: int, code: str) -> None:
    fake = FakeModel()
    if isinstance(body, dict):
        body = {"image_url": DATA_URI, **body}
    answer = run(post(server(fake), f"/v1/{skill}", body, {"content-type": "application/json"}))
    assert (answer.status, answer.code) == (status, code)
    assert fake.calls == []


@pytest.mark.parametrize(
    ("image_url", "status", "code"),
    [
        ("cat.jpg", 400, "invalid_image_url"),
        ("data:image/png," + "00", 400, "invalid_image_url"),
        ("data:image/png;base64,%%%", 400, "invalid_image_url"),
        ("data:image/png;base64,", 400, "invalid_image"),
        ("http://example.com/a.png", 422, "remote_image_refused"),
        ("https://example.com/a.png", 422, "remote_image_refused"),
        ("HTTPS://example.com/a.png", 422, "remote_image_refused"),
        ("file:///etc/passwd", 400, "invalid_image_url"),
    ],
)
def test_invalid_images_are_refused(image_url: str, status: int, code: str) -> None:
    answer = run(post(server(), "/v1/caption", {"image_url": image_url}))
    assert (answer.status, answer.code) == (status, code)


def test_two_images_are_one_too_many() -> None:
    body, headers = form({"image_url": DATA_URI})
    answer = run(post(server(), "/v1/caption", body, headers))
    assert (answer.status, answer.code) == (422, "too_many_images")


def test_a_body_of_another_kind_is_refused() -> None:
    answer = run(post(server(), "/v1/caption", b"<x/>", {"content-type": "text/xml"}))
    assert (answer.status, answer.code) == (415, "unsupported_content_type")


def test_a_skill_that_the_model_lacks_is_refused() -> None:
    fake = FakeModel()
    fake.skills = ("detect",)
    answer = run(post(server(fake), "/v1/caption", {"image_url": DATA_URI}))
    assert (answer.status, answer.code) == (422, "unsupported_skill")


def test_omitted_limits_are_capped_by_those_of_the_server() -> None:
    fake = FakeModel()
    body = {"image_url": DATA_URI, "settings": {"seed": 3}}
    assert run(post(server(fake, max_tokens=10, max_objects=500), "/v1/caption", body)).status == 200
    assert fake.calls[0].arguments["settings"] == {"seed": 3, "max_tokens": 10, "max_objects": 50}


@pytest.mark.parametrize("skill", ASKED)
def test_another_model_is_refused_in_every_form(skill: str) -> None:
    fake = FakeModel()
    app = server(fake)
    query = "&".join(f"{name}={value}".replace(" ", "%20") for name, value in ASKED[skill].items())
    body, headers = form({**{name: str(value) for name, value in ASKED[skill].items()}, "model": "other"})

    refused = [
        run(post(app, f"/v1/{skill}", {"image_url": DATA_URI, "model": "other", **ASKED[skill]})),
        run(post(app, f"/v1/{skill}", body, headers)),
        run(post(app, f"/v1/{skill}?model=other&{query}", PNG, {"content-type": "image/png"})),
    ]

    assert [(answer.status, answer.code) for answer in refused] == [(404, "model_not_found")] * 3
    assert fake.calls == []


@pytest.mark.parametrize("skill", ["detect", "point", "segment"])
def test_several_names_are_a_list_or_a_repeated_field(skill: str) -> None:
    fake = FakeModel()
    app = server(fake)
    body, headers = form({"min_score": "0.5", "object": '["key"]', "overlap": "best"})
    first = b'--xxBOUNDARYxx\r\nContent-Disposition: form-data; name="object"\r\n\r\nred mug\r\n'
    wanted = {"object": ["red mug", '["key"]'], "min_score": 0.5, "overlap": "best"}

    async def ask() -> list[int]:
        query = "object=red%20mug&min_score=0.5&object=%5B%22key%22%5D&overlap=best"
        return [
            (await post(app, f"/v1/{skill}", {"image_url": DATA_URI, **wanted})).status,
            (await post(app, f"/v1/{skill}", first + body, headers)).status,
            (await post(app, f"/v1/{skill}?{query}", PNG, {"content-type": "image/png"})).status,
        ]

    assert run(ask()) == [200] * 3
    assert [{name: call.arguments[name] for name in wanted} for call in fake.calls] == [wanted] * 3


@pytest.mark.parametrize(
    ("text", "wanted"),
    [('["mug", "key"]', ["mug", "key"]), (' [ "mug"]\n', ["mug"]), ("[sic] sign", "[sic] sign")],
)
def test_a_name_that_begins_with_brackets_is_no_list(text: str, wanted: Any) -> None:
    fake = FakeModel()
    body, headers = form({"object": text})

    assert run(post(server(fake), "/v1/detect", body, headers)).status == 200
    assert fake.calls[0].arguments["object"] == wanted


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"object": []}, "invalid_field"),
        ({"object": ["mug"] * 65}, "invalid_field"),
        ({"object": ["mug", 1]}, "invalid_field"),
        ({"object": ["mug", " "]}, "invalid_prompt"),
        ({"object": ["mug", "x" * 4001]}, "prompt_too_long"),
        ({"object": "mug", "min_score": 1.5}, "invalid_field"),
        ({"object": "mug", "overlap": "all"}, "invalid_field"),
        ({"object": "mug", "tile": "3x"}, "invalid_field"),
        ({"object": "mug", "tile": [3]}, "invalid_field"),
        ({"object": "mug", "tile": 0}, "invalid_field"),
        ({"object": "mug", "tile": [100, 100]}, "invalid_settings"),
        ({"object": "mug", "tile": 640}, "invalid_settings"),
    ],
)
def test_unusable_names_and_thresholds_are_refused(fields: dict[str, Any], code: str) -> None:
    fake = FakeModel()
    answer = run(post(server(fake), "/v1/detect", {"image_url": DATA_URI, **fields}))

    assert (answer.status, answer.code, fake.calls) == (422, code, [])


@pytest.mark.parametrize("tile", ["auto", 4, [1, 2], "1x2"])
def test_tiles_reach_the_model_from_json_and_from_a_form(tile: Any) -> None:
    fake = FakeModel()
    app = server(fake)
    text = tile if isinstance(tile, str) else json.dumps(tile)

    async def ask() -> list[int]:
        body, headers = form({"object": "mug", "tile": text})
        return [
            (await post(app, "/v1/detect", {"image_url": DATA_URI, "object": "mug", "tile": tile})).status,
            (await post(app, "/v1/detect", body, headers)).status,
            (
                await post(
                    app, f"/v1/detect?object=mug&tile={text}".replace(" ", ""), PNG, {"content-type": "image/png"}
                )
            ).status,
        ]

    assert run(ask()) == [200] * 3
    assert [call.arguments["tile"] for call in fake.calls] == [tile] * 3
