"""Many tasks in one call: so many open at a time, results in the order of the tasks.

```
tasks ──> begun, at most `window` ──> oldest ── waited for ──> results
```
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, cast

from tqdm import tqdm

from photonlite.engine.faults import without_frames
from photonlite.engine.generation import Generation
from photonlite.errors import InputError, PhotonliteError, SettingsError
from photonlite.options import OPTIONS, Options
from photonlite.session import Session
from photonlite.tasks import Task, Tasks

Errors = Literal["raise", "return"]


class Batch:
    """The tasks of one call. Leaving its block cancels what is still open.

    ```python
    with Batch(...) as batch:
        while batch.fill():
            batch.wait()  # or: await batch.await_oldest()
            batch.settle()
    batch.results
    ```

    Args:
        session: Answers them.
        builder: Builds them.
        tasks: Mappings, see `Tasks.from_mapping`, which may hold `Options` as well.
        progress: Whether a bar is shown.
        errors: "return" puts a failure in its task's place, "raise" ends the batch with the first one. Messages begin
            with the task's index.

    Attributes:
        results: So far.

    Raises:
        SettingsError: `errors` is neither.
        InputError: `tasks` cannot be iterated over.
        ModelError: The model is closed.
    """

    def __init__(
        self,
        session: Session,
        builder: Tasks,
        tasks: Iterable[Mapping[str, Any]],
        *,
        progress: bool,
        errors: Errors,
    ) -> None:
        if errors not in ("raise", "return"):
            raise SettingsError(f"errors is {errors!r:.60}: it must be 'return' or 'raise'")
        if not isinstance(tasks, Iterable) or isinstance(tasks, Mapping | str):
            raise InputError(f"tasks is of type {type(tasks).__name__}: give a list of dicts")
        session.check_open()
        self.results: list[Any] = []
        self._session = session
        self._builder = builder
        self._tasks = iter(tasks)
        self._raises = errors == "raise"
        self._begun = 0
        self._open: deque[tuple[Generation | None, Callable[[], Any]]] = deque()
        total = len(tasks) if isinstance(tasks, Sized) else None
        self._bar = tqdm(total=total, unit="task") if progress else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        for generation, _ in self._open:
            if generation is not None:
                generation.cancel()

    def fill(self) -> bool:
        """Begin as many tasks as may be open; returns whether any is."""
        while len(self._open) < self._session.window:
            try:
                task = next(self._tasks)
            except StopIteration:
                break
            self._open.append(self._begin(task))
            self._begun += 1
        return bool(self._open)

    def wait(self) -> None:
        """Wait for the oldest open task."""
        if (generation := self._open[0][0]) is not None:
            generation.wait()

    async def await_oldest(self) -> None:
        """The same for coroutines."""
        if (generation := self._open[0][0]) is not None:
            await generation.await_end()

    def settle(self) -> None:
        """Take the result of the oldest open task, which has ended."""
        _, finish = self._open.popleft()
        try:
            self.results.append(finish())
        except Exception as error:
            _name_task(error, len(self.results))
            if self._raises:
                raise
            # With its frames the list would keep the model, and itself, alive.
            self.results.append(without_frames(error.with_traceback(None) if _is_ours(error) else error))
        if self._bar is not None:
            self._bar.update()

    def _begin(self, mapping: Mapping[str, Any]) -> tuple[Generation | None, Callable[[], Any]]:
        try:
            task, options = self._build(mapping)
            generation = self._session.launch(task, options)
        except Exception as error:
            if self._raises:
                _name_task(error, self._begun)
                raise
            return None, partial(_raise, error)
        return generation, lambda: task.finish(generation.complete())

    def _build(self, mapping: Mapping[str, Any]) -> tuple[Task[Any], Options]:
        if not isinstance(mapping, Mapping):
            return self._builder.from_mapping(mapping), Options()  # which says what is wrong with it
        arguments = dict(mapping)
        options = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
        return self._builder.from_mapping(arguments), cast(Options, options)


def _is_ours(error: Exception) -> bool:
    return isinstance(error, PhotonliteError)  # whose message says it all


def _name_task(error: Exception, index: int) -> None:
    """Put the task's index in front of the message of an error of ours; any other error gets a note."""
    if _is_ours(error) and error.args:
        error.args = (f"task {index}: {error.args[0]}", *error.args[1:])
    else:
        error.add_note(f"in task {index} of the batch")


def _raise(error: Exception) -> None:
    raise error
