"""The n-th call at every seam fails, n = 1, 2, ... until a run needs fewer calls."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from photonlite.errors import (
    DeadlineError,
    EngineDiedError,
    NumericalError,
    PhotonliteError,
    RequestCancelledError,
    StepError,
)
from photonlite.runner.slots import Slot
from tests.faults.injection import DEVICE, SEAMS, Fault, broken, runner
from tests.faults.resources import Resources, await_resources, await_rest, resources
from tests.serving import GUARD, Gate, make_image, on_thread, serve

SHORT = {"max_tokens": 4, "max_objects": 1}
QUICK = ("device prefill", "collect", "cutting", "tokenizing")
"""Seams that `make test` goes through."""


class Bench:
    """A model, five requests that are asked at a time, and their answers without a fault."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "image.png"
        make_image(1).save(self.file)
        self.model = serve(grammar_workers=1, image_threads=2)
        self._salts = 0
        self.expected = self.ask()
        assert not [one for one in self.expected if isinstance(one, Exception)]

    def ask(self) -> list[Any]:
        """Ask everything anew: with a cache salt of its own, so that nothing that was computed before is reused."""
        self._salts += 1
        options = {"cache_salt": f"run {self._salts}", "settings": SHORT}
        about = {"image": self.file, **options}
        return self.model.batch(
            [
                {"skill": "detect", "object": "mug", **about},
                {"skill": "point", "object": "key", **options, "image": make_image(2)},
                {"skill": "caption", "length": "short", **about},
                {"skill": "query", "question": "why?", **options},
                # Longer than the shortest answer, which would need no step at all.
                {"skill": "query", "question": "how many?", "schema": bool, **options, "settings": {}},
            ]
        )

    def check_whole(self, before: Resources) -> None:
        """Check that the model answers everything right and holds no more than before."""
        assert self.ask() == self.expected
        await_resources(self.model, before)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("faults"))
    with made.model:
        yield made


def sweep(bench: Bench, name: str, error: Callable[[], Exception], *, late: bool = False) -> int:
    """Let each call of a seam fail, one a run; returns how many there were."""
    before, at = resources(bench.model), 0
    while True:
        at += 1
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(patch, bench.model, SEAMS[name], error, at, late=late)
            outcomes = bench.ask()
            await_rest(bench.model)
        if fault.calls < at:
            return at - 1
        pairs = list(zip(outcomes, bench.expected, strict=True))
        failed = [outcome for outcome, _ in pairs if isinstance(outcome, Exception)]
        typed = (PhotonliteError, type(error())) if SEAMS[name].bare else PhotonliteError
        assert all(isinstance(one, typed) for one in failed), (at, failed)
        assert all(outcome == expected for outcome, expected in pairs if not isinstance(outcome, Exception))
        assert len(failed) <= fault.touched, (at, failed)
        bench.check_whole(before)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, marks=[] if name in QUICK and not number else pytest.mark.long)
        for name, seam in SEAMS.items()
        for number in range(len(seam.errors))
    ],
)
def test_a_call_that_fails_ends_only_its_requests(bench: Bench, name: str, number: int) -> None:
    # A wait that fails at once would leave the device at work on the step, and with its buffers, while the next begins.
    assert sweep(bench, name, SEAMS[name].errors[number], late=name == "collect") >= 1


@pytest.mark.long
@pytest.mark.parametrize("name", [f"device {name}" for name in ("encode", "prefill", "decode", "finalize")])
def test_a_call_that_fails_behind_its_work_ends_only_its_requests(bench: Bench, name: str) -> None:
    assert sweep(bench, name, broken, late=True) >= 1


@pytest.mark.long
@pytest.mark.parametrize("at", range(1, 40, 5))
def test_a_lost_device_ends_every_request_and_a_restart_answers_again(bench: Bench, at: int) -> None:
    """From one call on, all calls of the device fail: of whichever method."""
    before, calls = resources(bench.model), 0

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= at:
                raise broken()
            return work(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in DEVICE:
            patch.setattr(runner(bench.model), name, counted(getattr(runner(bench.model), name)))
        outcomes: list[Any] = []
        while bench.model.alive:
            try:
                outcomes += bench.ask()
            except EngineDiedError as error:
                outcomes.append(error)
        assert {type(one) for one in outcomes if isinstance(one, Exception)} <= {StepError, EngineDiedError}
    bench.model.restart()
    bench.check_whole(before)


def spoil(bench: Bench, patch: pytest.MonkeyPatch, rows: slice, *kinds: str) -> None:
    """Let steps of some kinds leave NaN in some rows."""

    def spoiled(work: Callable[..., None]) -> Callable[..., None]:
        def run(slot: Slot, given: Any) -> None:
            work(slot, given)
            runner(bench.model)._buffers[slot.index].hidden[rows] = torch.nan

        return run

    for kind in kinds:
        patch.setattr(runner(bench.model), kind, spoiled(getattr(runner(bench.model), kind)))


def test_nan_in_one_row_ends_one_request_of_a_step(bench: Bench) -> None:
    before = resources(bench.model)
    with pytest.MonkeyPatch.context() as patch:
        spoil(bench, patch, slice(0, 1), "decode")
        two = [{"skill": "caption", "image": make_image(seed), "settings": SHORT} for seed in (3, 4)]
        whole = [on_thread(lambda task=task: bench.model.batch([task])[0]) for task in two]
        outcomes = [one.result(GUARD) for one in whole]
    assert any(isinstance(one, NumericalError) for one in outcomes)
    assert all(isinstance(one, NumericalError) or one["caption"] is not None for one in outcomes)
    bench.check_whole(before)


def test_nan_in_all_rows_ends_their_requests_and_no_engine(bench: Bench) -> None:
    before = resources(bench.model)
    with pytest.MonkeyPatch.context() as patch:
        spoil(bench, patch, slice(None), "decode", "prefill")
        outcomes = bench.ask()
    assert all(isinstance(one, NumericalError) for one in outcomes)
    assert bench.model.alive
    bench.check_whole(before)


def test_a_stuck_stream_holds_up_requests_which_may_give_up(bench: Bench) -> None:
    before, model = resources(bench.model), bench.model
    with pytest.MonkeyPatch.context() as patch:
        gate, executor, waits = (
            Gate(patch, runner(model), "decode"),
            model._session.engine._core.runner,
            threading.Event(),
        )
        collect = executor.collect
        patch.setattr(executor, "collect", lambda step: (step.kind == "decode" and waits.set()) or collect(step))
        stuck = on_thread(lambda: model.query(question="why?", settings=SHORT))
        gate.wait()
        with pytest.raises(DeadlineError):
            model.query(question="why not?", settings=SHORT, deadline_s=0.01)
        waiting = model._session.launch(model._building.caption(make_image(5), "short", settings=SHORT))
        waiting.cancel()
        assert isinstance(waiting.future.exception(GUARD), RequestCancelledError)
        assert waits.wait(GUARD)
        assert model.waits_for_device
        gate.open()
        assert stuck.result(GUARD)["answer"] == bench.expected[3]["answer"]
    bench.check_whole(before)
