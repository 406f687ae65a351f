"""Calls that fail when a test says so, at seams that a model has anyway: nothing in photonlite knows of them."""

import errno
import io
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from PIL import ImageFile

from photonlite.api import VisionModel
from photonlite.batch import Step
from photonlite.grammar.compiler.client import CompileProcess
from photonlite.images import pool, source
from photonlite.images.crops import CropSpec
from photonlite.models.tokenizer import IncrementalDetokenizer
from photonlite.processes.worker import WorkerLostError
from photonlite.runner.slots import Slot

Owner = Callable[[VisionModel], Any]


def broken() -> Exception:
    return RuntimeError("CUDA error: an injected launch failure")


def shortage() -> Exception:
    return MemoryError("injected")


def disk() -> Exception:
    return OSError(errno.EIO, "an injected input/output error")


def killed() -> Exception:
    return WorkerLostError("killed")


@dataclass(frozen=True)
class Seam:
    """A function that work goes through.

    Attributes:
        name: Of the function.
        owner: What has it, of a model.
        errors: What it may raise.
        shared: Whether a call is about all requests of a step; else it is about one request.
        bare: Whether an error may reach the caller as it was raised: it comes from the caller's own thread, before or
            after the request, or is none that was foreseen.
        prepare: Called before the seam is patched.
    """

    name: str
    owner: Owner
    errors: tuple[Callable[[], Exception], ...] = (broken, shortage)
    shared: bool = True
    bare: bool = False
    prepare: Callable[[pytest.MonkeyPatch, VisionModel], None] = lambda patch, model: None


class ReadFile(io.BufferedReader):
    """A file whose methods can be replaced."""


def own_files(patch: pytest.MonkeyPatch, model: VisionModel) -> None:
    """Let images be read from `ReadFile`s."""
    patch.setattr(source, "open", lambda path, mode: ReadFile(io.FileIO(path)), raising=False)


def kill_compilers(patch: pytest.MonkeyPatch, model: VisionModel) -> None:
    """Kill the processes that compile grammars, so that the next grammar starts one."""
    processes = model._session._compiler._pool._processes
    for process in list(processes):
        process.kill()
        process.wait_exit()


def executor(model: VisionModel) -> Any:
    return model._session.engine._core.runner


def runner(model: VisionModel) -> Any:
    return executor(model)._model_runner


_WORK = ("encode", "prefill", "decode", "copy_pages", "finalize", "download")
DEVICE = ("upload_rows", "upload_prompts", "upload_crops", "upload_choices", *_WORK)
"""Methods of the model runner: every call fails when the device is lost."""

SEAMS: dict[str, Seam] = {
    **{f"device {name}": Seam(name, runner) for name in DEVICE},
    "launch": Seam("launch", executor),
    **{name: Seam(name, executor, (broken,)) for name in ("finalize", "collect")},
    "allocating crops": Seam("buffer", lambda model: model._session._pool, (shortage,), shared=False),
    "opening a file": Seam("open", lambda _: source, (disk,), shared=False, prepare=own_files),
    "reading a file": Seam("read", lambda _: ReadFile, (disk, shortage), shared=False, prepare=own_files),
    "decoding": Seam("load", lambda _: ImageFile.ImageFile, (disk, shortage), shared=False),
    "hashing": Seam("image_key", lambda _: pool, (shortage,), shared=False),
    "cutting": Seam("cut", lambda _: CropSpec, (shortage, broken), shared=False, bare=True),
    "tokenizing": Seam("encode", lambda model: model._prompts._tokenizer, (shortage,), shared=False, bare=True),
    "detokenizing": Seam("feed", lambda _: IncrementalDetokenizer, (shortage,), shared=False, bare=True),
    "compiling": Seam("ask", lambda _: CompileProcess, (killed, shortage, disk), shared=False),
    "starting a compiler": Seam("Popen", lambda _: subprocess, (disk,), shared=False, prepare=kill_compilers),
}


class Fault:
    """Makes call number `at` of a seam fail, and with `lasting` all after it; with `late`, after it has done its work.

    Attributes:
        calls: Calls so far.
        touched: Requests that the failing call was about, at most.
    """

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        model: VisionModel,
        seam: Seam,
        error: Callable[[], Exception],
        at: int = 1,
        *,
        lasting: bool = False,
        late: bool = False,
    ) -> None:
        self.calls = self.touched = 0
        seam.prepare(patch, model)
        owner = seam.owner(model)
        work = getattr(owner, seam.name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == at or (lasting and self.calls > at):
                self.touched += len(_requests(model, arguments)) if seam.shared else 1
                if late:
                    work(*arguments, **options)
                raise error()
            return work(*arguments, **options)

        patch.setattr(owner, seam.name, call)


def _requests(model: VisionModel, arguments: tuple[Any, ...]) -> set[int]:
    """Return the numbers of the requests that a call on the device is about."""
    steps = list(model._session.engine._core.pipeline.in_flight)
    if arguments and isinstance(arguments[0], Step):
        steps = [arguments[0]]
    elif arguments and isinstance(arguments[0], Slot):
        steps = [step for step in steps if step.slot == arguments[0].index]
    rows = {row.sequence.number for step in steps for row in step.rows}
    return rows | {group.job.leader.number for step in steps for group in step.plan.groups}
