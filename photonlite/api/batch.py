"""Many tasks in one call: a window of them is open at a time, and results come in the order of the tasks."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from tqdm import tqdm

from photonlite.api.session import Session
from photonlite.api.tasks import Task
from photonlite.engine.faults import without_frames
from photonlite.engine.handle import RequestHandle
from photonlite.errors import InputError, PhotonliteError, SettingsError

Errors = Literal["raise", "return"]


class BatchCall:
    """One call of `VisionModel.batch`. Leaving its block cancels what is still open.

    ```python
    with BatchCall(...) as batch:
        while batch.fill():
            batch.wait()  # or: await batch.wait_async()
            batch.collect()
    batch.results
    ```

    Args:
        session: Answers the tasks.
        build: Builds the task of a mapping.
        tasks: Mappings.
        window: Tasks that are open at a time.
        progress: Whether to show a bar.
        errors: "return" puts an error in the place of its task's result, "raise" ends the batch with the first one.
    """

    def __init__(
        self,
        session: Session,
        build: Callable[[Mapping[str, Any]], Task[Any]],
        tasks: Iterable[Mapping[str, Any]],
        *,
        window: int,
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
        self._build = build
        self._tasks = iter(tasks)
        self._window = window
        self._raises = errors == "raise"
        self._open: deque[tuple[RequestHandle | None, Callable[[], Any]]] = deque()
        total = len(tasks) if isinstance(tasks, Sized) else None
        self._bar = tqdm(total=total, unit="task") if progress else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        for handle, _ in self._open:
            if handle is not None:
                handle.cancel()

    def fill(self) -> bool:
        """Begin as many tasks as may be open; returns whether any is."""
        while len(self._open) < self._window:
            try:
                task = next(self._tasks)
            except StopIteration:
                break
            self._open.append(self._begin(task))
        return bool(self._open)

    def wait(self) -> None:
        """Wait for the oldest open task."""
        if (handle := self._open[0][0]) is not None:
            handle.wait()

    async def wait_async(self) -> None:
        """Await the oldest open task."""
        if (handle := self._open[0][0]) is not None:
            await handle.wait_async()

    def collect(self) -> None:
        """Add the result of the oldest open task, which has ended."""
        _, finish = self._open.popleft()
        try:
            self.results.append(finish())
        except Exception as error:
            _name_task(error, len(self.results))
            if self._raises:
                raise
            # With its frames the list would keep the model, and itself, alive.
            ours = isinstance(error, PhotonliteError)  # its message says it all
            self.results.append(without_frames(error.with_traceback(None) if ours else error))
        if self._bar is not None:
            self._bar.update()

    def _begin(self, mapping: Mapping[str, Any]) -> tuple[RequestHandle | None, Callable[[], Any]]:
        try:
            task = self._build(mapping)
            handle = self._session.launch(task)
        except Exception as error:
            if self._raises:
                _name_task(error, len(self.results) + len(self._open))
                raise
            return None, partial(_raise, error)
        return handle, lambda: task.finish(handle.result())


def _name_task(error: Exception, index: int) -> None:
    """Put the task's index in front of the message of an error of photonlite's; any other error gets a note."""
    if isinstance(error, PhotonliteError) and error.args:
        error.args = (f"task {index}: {error.args[0]}", *error.args[1:])
    else:
        error.add_note(f"in task {index} of the batch")


def _raise(error: Exception) -> None:
    raise error
