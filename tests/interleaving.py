"""Run threads one at a time and switch between any two lines as a seed decides: races replay from their seed.

```python
world = Interleaving(seed, loop_module, window_module)  # lines of these modules are where threads may switch
with world:                                             # their threads, locks, queues and clocks are the world's
    world.spawn(submit, name="submitter")
    world.run()                                         # until all have ended; raises what a thread raised
```

Exactly one thread runs at any moment. The others wait until it reaches a line or blocks. A thread that blocks gives the
condition under which it continues. Half of the seeds draw the next thread evenly. The others give threads ranks, and
the highest one runs until it blocks or is demoted: a thread may then stand still at one line while all others finish.

Time stands still while any thread can run: a timeout passes only when all are blocked. So `world.now` is the time that
was slept away: 0 means that no wake-up was lost. Where nothing but an endless series of timeouts is left, or nothing at
all, the world ends with `Deadlock`.
"""

import concurrent.futures
import queue
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Executor, Future
from random import Random
from typing import Any

from tests.guard import GUARD

_PATIENCE = 100.0
"""Simulated seconds after which threads that wake up only to sleep again count as deadlocked."""


class Deadlock(BaseException):
    """No thread can continue, and no timeout ends that. Not an `Exception`, so that no error handler swallows it."""


class _Aborted(BaseException):
    """Unwinds the remaining threads when one has failed."""


class Actor:
    """One thread of a world: the members of a `threading.Thread` that are used."""

    def __init__(
        self, world: "Interleaving", target: Callable[..., Any], args: tuple[Any, ...] = (), name: str | None = None
    ) -> None:
        self.name = name or f"thread {len(world.actors)}"
        self.condition: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.started = self.ended = False
        self.baton = threading.Semaphore(0)
        self.rank = world.draw()
        self._world = world
        self._target = target
        self._args = args
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @property
    def ready(self) -> bool:
        return self.started and not self.ended and (self.condition is None or self.condition())

    def start(self) -> None:
        self._world.actors.append(self)
        self.started = True
        self._thread.start()
        self._world.switch()

    def join(self, timeout: float | None = None) -> None:
        self._world.until(lambda: self.ended, timeout)

    def is_alive(self) -> bool:
        return self.started and not self.ended

    def leave(self) -> None:
        """Wait for the real thread, when the world has ended."""
        self._thread.join(GUARD)

    def _run(self) -> None:
        world = self._world
        self.baton.acquire()
        sys.settrace(world.trace)
        try:
            if not world.aborted:
                self._target(*self._args)
        except _Aborted:
            pass
        except BaseException as error:
            world.fail(error)
        finally:
            sys.settrace(None)
            self.ended = True
            self._target, self._args = _nothing, ()  # what the thread held may be collected now
            world.hand_over()


class Interleaving:
    """A world of threads in which a seed decides which one runs.

    Args:
        seed: Of all decisions.
        modules: Where threads may switch between lines. What they know as `threading`, `queue`, `time`,
            `ThreadPoolExecutor` and `wait` is the world's while the world is entered.

    Attributes:
        now: Seconds that passed because everybody was blocked.
        switches: How often another thread was chosen.
        actors: All threads there have been.
        aborted: Whether one has failed: the others unwind.
    """

    def __init__(self, seed: int, *modules: types.ModuleType) -> None:
        self.now = 0.0
        self.switches = 0
        self.actors: list[Actor] = []
        self.aborted = False
        self._random = Random(seed)
        self._eagerness = self._random.choice((0.02, 0.1, 0.3, 0.6))
        self._ranked = self._random.random() < 0.5
        self._files = {module.__file__ for module in modules}
        self._modules = modules
        self._replaced: list[tuple[types.ModuleType, str, Any]] = []
        self._current: Actor | None = None
        self._done = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> "Interleaving":
        stand_ins = self._stand_ins()
        for module in self._modules:
            for name, stand_in in stand_ins.items():
                if hasattr(module, name):
                    self._replaced.append((module, name, getattr(module, name)))
                    setattr(module, name, stand_in)
        return self

    def __exit__(self, *_: object) -> None:
        self.aborted = True
        for actor in self.actors:
            actor.baton.release()
        for actor in self.actors:
            actor.leave()
        for module, name, original in reversed(self._replaced):
            setattr(module, name, original)

    def spawn(self, target: Callable[..., Any], *args: Any, name: str | None = None) -> Actor:
        """Add a thread."""
        actor = Actor(self, target, args, name)
        actor.start()
        return actor

    def run(self) -> None:
        """Let the threads run until all have ended.

        Raises:
            Deadlock: Nobody can go on.
            BaseException: What a thread raised.
        """
        self.hand_over()
        assert self._done.wait(GUARD), f"hung: {self._standing()}"
        if self._failure is not None:
            raise self._failure

    def switch(self) -> None:
        """Let another thread run, if the seed decides so; the calling thread stays ready."""
        me = self._current
        if me is None or threading.current_thread() is not me._thread:
            return
        self._check()
        if self.draw() < self._eagerness:
            me.rank = -self.draw()
            self._pass_on(me)

    def until(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block the calling thread until a condition holds; returns whether it does, or the time has passed first."""
        me = self._current
        if me is None or threading.current_thread() is not me._thread:
            if condition():  # before the world runs: no other thread could make it hold
                return True
            raise Deadlock("the world does not run yet, and its maker is blocked")
        self.switch()
        while not condition():
            me.condition = condition
            me.deadline = None if timeout is None else self.now + timeout
            self._pass_on(me)
            expired = me.deadline is not None and self.now >= me.deadline
            me.condition = me.deadline = None
            if expired and not condition():
                return False
        return True

    def draw(self) -> float:
        """Draw a number from 0 to 1."""
        return self._random.random()

    def trace(self, frame: types.FrameType, event: str, argument: object) -> Any:
        """Switch at lines of the modules."""
        return self._line if frame.f_code.co_filename in self._files else None

    def fail(self, error: BaseException) -> None:
        """End the world with an error."""
        self._failure = self._failure or error
        self.aborted = True

    def hand_over(self) -> None:
        """Pass control to another thread, or end the world: the caller does not continue."""
        following = self._next()
        self._current = following
        if following is None:
            self._done.set()
        else:
            following.baton.release()

    def _line(self, frame: types.FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.switch()
        return self._line

    def _pass_on(self, me: Actor) -> None:
        following = self._next()
        if following is not me:
            assert following is not None, "the calling thread lives"
            self.switches += 1
            self._current = following
            following.baton.release()
            me.baton.acquire()
        self._check()

    def _check(self) -> None:
        if self.aborted:
            raise _Aborted

    def _next(self) -> Actor | None:
        living = [actor for actor in self.actors if not actor.ended]
        if self.aborted or not living:
            return living[0] if living else None
        ready = [actor for actor in living if actor.ready]
        if ready:
            return max(ready, key=lambda actor: actor.rank) if self._ranked else self._random.choice(ready)
        sleeping = [actor for actor in living if actor.deadline is not None]
        if not sleeping or self.now > _PATIENCE:
            self.fail(Deadlock(self._standing()))
            return living[0]
        first = min(sleeping, key=lambda actor: actor.deadline or 0.0)
        assert first.deadline is not None
        self.now = max(self.now, first.deadline)
        return first

    def _standing(self) -> str:
        frames = sys._current_frames()
        lines = []
        for actor in self.actors:
            frame = frames.get(actor._thread.ident or 0)
            while frame is not None and frame.f_code.co_filename not in self._files:
                frame = frame.f_back
            place = "outside" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
            lines.append(f"{actor.name}: {'ended' if actor.ended else place}")
        return "everybody is blocked: " + "; ".join(lines)

    def _stand_ins(self) -> dict[str, Any]:
        world = self

        def thread(
            target: Callable[..., Any], args: tuple[Any, ...] = (), name: str | None = None, daemon: bool = True
        ) -> Actor:
            return Actor(world, target, args, name)

        def sleep(seconds: float) -> None:
            world.until(lambda: False, seconds)

        def wait(fs: Iterable["Future[Any]"], timeout: float | None = None, return_when: str = ALL_COMPLETED) -> Any:
            futures = list(fs)
            enough = any if return_when == FIRST_COMPLETED else all
            world.until(lambda: enough(one.done() for one in futures) or not futures, timeout)
            done = {one for one in futures if one.done()}
            return done, set(futures) - done

        def executor(threads: int, thread_name_prefix: str = "pool") -> "_Executor":
            return _Executor(world, threads, thread_name_prefix)

        threads = {
            "Thread": thread,
            "Lock": lambda: _Lock(world),
            "RLock": lambda: _Lock(world),
            "Condition": lambda lock=None: _Condition(world, lock or _Lock(world)),
            "Semaphore": lambda value=1: _Semaphore(world, value),
            "Event": lambda: _Event(world),
            "current_thread": lambda: world._current or threading.current_thread(),
        }
        return {
            "threading": _Namespace(threading, threads),
            "queue": _Namespace(queue, {"SimpleQueue": lambda: _Queue(world)}),
            "time": _Namespace(time, {"perf_counter": lambda: world.now, "sleep": sleep}),
            "concurrent": types.SimpleNamespace(futures=_Namespace(concurrent.futures, {"wait": wait})),
            "ThreadPoolExecutor": executor,
            "wait": wait,
        }


class _Namespace:
    """A module with some names replaced."""

    def __init__(self, module: types.ModuleType, names: dict[str, Any]) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Lock:
    """A reentrant lock. (A plain one would deadlock the same way in a single thread, which is no race.)"""

    def __init__(self, world: Interleaving) -> None:
        self._world = world
        self._owner: object = None
        self._depth = 0

    def acquire(self) -> bool:
        me = self._world._current or threading.current_thread()
        if self._owner is not me:
            self._world.until(lambda: self._owner is None)
            self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._world.switch()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition:
    def __init__(self, world: Interleaving, lock: _Lock) -> None:
        self._world = world
        self._lock = lock
        self._notified = 0

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            seen, depth = self._notified, self._lock._depth
            self._lock._depth, self._lock._owner = 0, None
            woken = self._world.until(lambda seen=seen: self._notified > seen, timeout)  # type: ignore[misc]
            self._lock.acquire()
            self._lock._depth = depth
            if not woken:
                return predicate()
        return True

    def notify_all(self) -> None:
        self._notified += 1

    notify = notify_all


class _Semaphore:
    def __init__(self, world: Interleaving, value: int) -> None:
        self._world = world
        self._value = value

    def acquire(self) -> bool:
        self._world.until(lambda: self._value > 0)
        self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1
        self._world.switch()


class _Event:
    def __init__(self, world: Interleaving) -> None:
        self._world = world
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._world.switch()

    def wait(self, timeout: float | None = None) -> bool:
        return self._world.until(lambda: self._set, timeout)


class _Queue:
    def __init__(self, world: Interleaving) -> None:
        self._world = world
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._world.switch()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._world.until(lambda: bool(self._items), timeout if block else 0.0):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class _Executor(Executor):
    """The members of a `ThreadPoolExecutor` that are used."""

    def __init__(self, world: Interleaving, threads: int, name: str) -> None:
        self._world = world
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closed = False
        self._actors = [Actor(world, self._work, name=f"{name}-{number}") for number in range(threads)]
        for actor in self._actors:
            actor.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._jobs.append((future, lambda: fn(*args, **kwargs)))
        self._world.switch()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        for actor in self._actors:
            actor.join()

    def _work(self) -> None:
        while True:
            self._world.until(lambda: bool(self._jobs) or self._closed)
            if not self._jobs:
                return
            future, job = self._jobs.popleft()
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)


def _nothing() -> None:
    return
