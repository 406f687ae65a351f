"""Requests by the OpenAPI document and against it (schemathesis) in every fourth batch, and mutated ones."""

import contextlib
import http.client
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from bench.campaign.client import BROKEN, HOST, Answer, fault
from bench.campaign.request_mutations import PNG_URI, Mutation, mutate
from bench.campaign.server import Server
from bench.campaign.trial import Batches, Outcome, Setup, Trial
from photonlite.server.routes.docs import MEDIA_TYPES

BATCH: Final = 200
_CLIENTS: Final = 8
_MUTATED: Final = 3  # batches after each one by schemathesis, which takes longer
_SILENT_S: Final = 30.0
_FLAGS: Final = (
    *("--max-tokens", "4", "--max-objects", "4", "--max-prompt-characters", "200", "--image-workers", "2"),
    *("--header-timeout-seconds", "1", "--body-timeout-seconds", "1"),
)
_CHECKS: Final[list[Any]] = [content_type_conformance, response_schema_conformance]
_MODES: Final = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)


def run(setup: Setup, first: int) -> Batches:
    with Server(setup, *_FLAGS) as server, ThreadPoolExecutor(_CLIENTS) as pool:
        operations = documented(f"http://{HOST}:{server.port}/openapi.json")
        batch = -(-first // BATCH)
        while True:
            if batch % (1 + _MUTATED):
                outcomes = _mutated(pool, server.port, setup.seed, batch)
            else:
                operation = operations[batch // (1 + _MUTATED) % len(operations)]
                outcomes = _generated(operation, setup.seed, batch)
            if ended := server.restarts():
                outcomes[-1] = outcomes[-1]._replace(failure=f"{outcomes[-1].failure} {ended}")
            yield outcomes
            batch += 1


def documented(url: str) -> list[Any]:
    """Return the operations of an OpenAPI document that take parameters or a body."""
    for media_type in MEDIA_TYPES:
        schemathesis.openapi.media_type(media_type, st.binary(max_size=200))
    schema = schemathesis.openapi.from_url(url)
    schema.hook(map_body)
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    return [operation for operation in operations if operation.body or operation.query]


def map_body(context: Any, body: Any) -> Any:
    """Put an image and a question where the document says "text" in three of four bodies: some are answered."""
    if not isinstance(body, dict) or len(str(body)) % 4 == 0:
        return body
    if isinstance(body.get("image_url"), str):
        body["image_url"] = PNG_URI
    if isinstance(body.get("messages"), list):
        part = {"type": "image_url", "image_url": {"url": PNG_URI}}
        body["messages"].append({"role": "user", "content": [{"type": "text", "text": "?"}, part]})
        body.pop("model", None)
    return body


def drawn(operation: Any, seed: int, count: int) -> list[Any]:
    """Return cases of an operation, the same for the same seed; fewer where it has no more."""
    cases: list[Any] = []
    for mode in _MODES:
        strategy = operation.as_strategy(generation_mode=mode)
        settings = hypothesis.settings(
            max_examples=count // len(_MODES),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        collect = hypothesis.given(strategy)(lambda case: cases.append(case))  # type: ignore[no-untyped-call]
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # there is nothing wrong to send
            hypothesis.seed(seed)(settings(collect))()
    return cases[:count]


def _generated(operation: Any, seed: int, batch: int) -> list[Outcome]:
    cases = drawn(operation, random.Random(f"requests {seed} {batch}").randrange(2**32), BATCH)
    return [_asked(case, batch * BATCH + index) for index, case in enumerate(cases)]


def _asked(case: Any, number: int) -> Outcome:
    begun = time.perf_counter()
    name = f"{case.method} {case.path}"
    try:
        response = case.call(timeout=_SILENT_S)
        answer = Answer(response.status_code, response.content or b"", begun, time.perf_counter())
        wrong = "" if case.method == "HEAD" else fault(answer)
        if not wrong and answer.status < 500:
            case.validate_response(response, checks=_CHECKS)
    except (FailureGroup, AssertionError) as failure:
        inner = getattr(failure, "exceptions", [failure])
        wrong = "; ".join(str(one) for one in inner)
    except (OSError, ValueError) as failure:
        return Outcome(number, f"{name}: {failure!r}", counts={"schemathesis": 1})
    counts = {"schemathesis": 1, f"status {answer.status}": 1}
    return Outcome(number, f"{name}: {wrong}" if wrong else "", {"slowest answer (s)": answer.seconds}, counts)


def _mutated(pool: ThreadPoolExecutor, port: int, seed: int, batch: int) -> list[Outcome]:
    numbers = range(batch * BATCH, (batch + 1) * BATCH)
    return list(pool.map(partial(_sent, port, seed), numbers))


def _sent(port: int, seed: int, number: int) -> Outcome:
    mutation = mutate(random.Random(f"requests {seed} {number}"))
    answer = send(port, mutation)
    wrong = fault(answer)
    if mutation.head_changed and answer.status == BROKEN and answer.seconds < _SILENT_S:
        wrong = ""
    status = f"status {answer.status}" if answer.status else "closed without an answer"
    counts = {"mutated": 1, status: 1}
    return Outcome(number, f"{mutation.done}: {wrong}" if wrong else "", {"slowest answer (s)": answer.seconds}, counts)


def send(port: int, mutation: Mutation) -> Answer:
    """Send bytes over a connection, and read what comes back."""
    begun, status, body = time.perf_counter(), BROKEN, b""
    with (
        contextlib.suppress(OSError, http.client.HTTPException, ValueError),
        socket.create_connection((HOST, port), timeout=_SILENT_S) as connection,
    ):
        with contextlib.suppress(ConnectionError):  # it may have answered before all was sent
            connection.sendall(mutation.data)
        method = mutation.data.partition(b" ")[0].decode("latin-1")
        with contextlib.closing(http.client.HTTPResponse(connection, method=method)) as response:
            response.begin()
            body = b"" if method == "HEAD" else response.read()
            status = response.status
    if status >= 400 and not body and mutation.data.startswith(b"HEAD"):
        body = b'{"error": {"message": "not sent", "type": "of HEAD", "code": "not_sent"}}'
    return Answer(status, body, begun, time.perf_counter())


TRIAL = Trial(
    "requests",
    "requests by schemathesis and by mutation",
    100_000,
    "a 5xx other than 503 and 504; an error without a code; a body that the OpenAPI document does not tell of; no "
    "answer",
    run,
)
