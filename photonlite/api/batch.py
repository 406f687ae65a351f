"""Many tasks in one call: a window of them is open at a time, and results come in the order of the tasks."""

import inspect
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sized
from typing import Any, Literal

from tqdm import tqdm

from photonlite.api.session import Session
from photonlite.api.tasks import OPTIONS, Task, check_names
from photonlite.engine.faults import without_frames
from photonlite.engine.handle import RequestHandle
from photonlite.errors import InputError, PhotonliteError, SettingsError
from photonlite.hints import did_you_mean

Errors = Literal["raise", "return"]
_END: Any = object()
_SKILLS = ("caption", "query", "chat", "detect", "point", "segment")


def run_batch(
    session: Session,
    build: Callable[[Mapping[str, Any]], Task[Any]],
    tasks: Iterable[Mapping[str, Any]],
    results: list[Any],
    *,
    window: int,
    progress: bool,
    errors: Errors,
) -> Generator[RequestHandle, None, None]:
    """Append to `results`, yielding the oldest open request to wait for; closing the generator cancels open ones."""
    if errors not in ("raise", "return"):
        raise SettingsError(f"errors is {errors!r:.60}: it must be 'return' or 'raise'")
    if not isinstance(tasks, Iterable) or isinstance(tasks, Mapping | str):
        raise InputError(f"tasks is of type {type(tasks).__name__}: give a list of dicts")
    session.check_open()
    waiting, total = iter(tasks), len(tasks) if isinstance(tasks, Sized) else None
    opened: deque[tuple[RequestHandle, Task[Any]] | Exception] = deque()
    with tqdm(total=total, unit="task", disable=not progress) as bar:
        try:
            while True:
                while len(opened) < window and (mapping := next(waiting, _END)) is not _END:
                    try:
                        task = build(mapping)
                        opened.append((session.launch(task), task))
                    except Exception as error:
                        if errors == "raise":
                            _name_task(error, len(results) + len(opened))
                            raise
                        opened.append(error)
                if not opened:
                    return
                if isinstance(opened[0], tuple):
                    yield opened[0][0]
                results.append(_result(opened.popleft(), len(results), errors))
                bar.update()
        finally:
            for entry in opened:
                if isinstance(entry, tuple):
                    entry[0].cancel()


def _result(entry: tuple[RequestHandle, Task[Any]] | Exception, index: int, errors: Errors) -> Any:
    try:
        if isinstance(entry, Exception):
            raise entry
        handle, task = entry
        return task.result_of(handle)
    except Exception as error:
        _name_task(error, index)
        if errors == "raise":
            raise
        # With its frames the list would keep the model, and itself, alive.
        ours = isinstance(error, PhotonliteError)  # its message says it all
        return without_frames(error.with_traceback(None) if ours else error)


def _name_task(error: Exception, index: int) -> None:
    """Put the task's index in front of the message of an error of photonlite's; any other error gets a note."""
    if isinstance(error, PhotonliteError) and error.args:
        error.args = (f"task {index}: {error.args[0]}", *error.args[1:])
    else:
        error.add_note(f"in task {index} of the batch")


def task_from_mapping(model: Any, mapping: Mapping[str, Any]) -> Task[Any]:
    """Build the task of `{"skill": "detect", "image": ..., "object": ...}` by a model whose methods return tasks."""
    skill = mapping.get("skill") if isinstance(mapping, Mapping) else None
    if not isinstance(skill, str) or skill not in _SKILLS:
        hint = "" if skill is None else f"there is no skill {skill!r:.60}{did_you_mean(skill, _SKILLS)}: "
        example = "{'skill': 'detect', 'image': ..., 'object': ...}"
        raise InputError(f"{hint}a task is a dict such as {example}; the skills are {', '.join(_SKILLS)}")
    arguments = {name: value for name, value in mapping.items() if name != "skill"}
    method = getattr(model, skill)
    check_names((str(name) for name in arguments if name not in OPTIONS), method)
    try:
        inspect.signature(method).bind(**arguments)
    except TypeError as cause:
        raise InputError(f"the task {skill!r} lacks something: {cause}") from cause
    if arguments.get("stream"):
        raise InputError("a batch gives whole texts: leave stream out, or ask for this one by itself")
    task: Task[Any] = method(**arguments)
    return task
