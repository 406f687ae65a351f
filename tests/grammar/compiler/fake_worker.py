"""A worker whose build function does what the source of a regex tells it: `python fake_worker.py`, or with "broken"."""

import gc
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from photonlite.errors import GrammarTooLargeError
from photonlite.grammar.automata.tables import AutomatonTables, SpecialIds, TokenSets
from photonlite.grammar.compiler.worker import serve
from photonlite.processes import messages

TIMERS: list[float] = []
"""Seconds of each timer that was set, 0 where one was taken back."""


def set_timer(which: int, seconds: float, setitimer: Any = signal.setitimer) -> Any:
    TIMERS.append(seconds)
    return setitimer(which, seconds)


class Ring:
    """Refers to itself."""

    itself: Any


class Panic(BaseException):
    """Like those of Rust, which are no exceptions."""


def prepare(pieces: Any, ids: Any) -> Any:
    if "broken" in sys.argv:
        raise RuntimeError("no such vocabulary")
    if "deaf" in sys.argv:
        signal.pause()

    def build(spec: Any) -> Any:
        what, _, rest = spec.source.partition(" ")
        answer = getattr(Actions, what)(rest, pieces, ids)
        # An automaton like no other: its end id is the answer.
        none = np.zeros(1, np.int32)
        rows = TokenSets(none[:, None], none, none)
        return AutomatonTables(
            SpecialIds(answer, None, None, 0), 0, none[:, None], none, *[none] * 4, rows, none[:, None]
        )

    return build


class Actions:
    """What a source may ask for."""

    @staticmethod
    def give(text: str, pieces: Any, ids: Any) -> Any:
        return text

    @staticmethod
    def vocabulary(text: str, pieces: Any, ids: Any) -> Any:
        return pieces, ids

    @staticmethod
    def process(text: str, pieces: Any, ids: Any) -> Any:
        return os.getpid()

    @staticmethod
    def modules(text: str, pieces: Any, ids: Any) -> Any:
        return sorted(sys.modules)

    @staticmethod
    def state(text: str, pieces: Any, ids: Any) -> Any:
        import resource

        stops = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
        timers = [signal.getitimer(one)[0] for one in (signal.ITIMER_PROF, signal.ITIMER_REAL)]
        return stops, timers, resource.getrlimit(resource.RLIMIT_AS)[0], os.getsid(0) == os.getpid()

    @staticmethod
    def timers(text: str, pieces: Any, ids: Any) -> Any:
        return TIMERS

    @staticmethod
    def garbage(text: str, pieces: Any, ids: Any) -> Any:
        """Leave a ring of objects behind; give whether they are searched for now, and how many of earlier jobs live."""
        left = sum(isinstance(one, Ring) for one in gc.get_objects())
        ring = Ring()
        ring.itself = ring
        return gc.isenabled(), left

    @staticmethod
    def large(text: str, pieces: Any, ids: Any) -> Any:
        return bytes(int(text))

    @staticmethod
    def wait(text: str, pieces: Any, ids: Any) -> Any:
        """Wait until a named pipe is opened for writing; tell that through another pipe first, if there are two."""
        if " " in text:
            text, begun = text.split()
            os.close(os.open(begun, os.O_WRONLY))
        with open(text) as pipe:
            return pipe.read()

    @staticmethod
    def hold(text: str, pieces: Any, ids: Any) -> Any:
        """Keep a named pipe open: its reader sees when this process ends."""
        return os.open(text, os.O_WRONLY)

    @staticmethod
    def ever(text: str, pieces: Any, ids: Any) -> Any:
        signal.pause()

    @staticmethod
    def compute(text: str, pieces: Any, ids: Any) -> Any:
        while True:
            pass

    @staticmethod
    def sleep(text: str, pieces: Any, ids: Any) -> Any:
        time.sleep(float(text))
        return text

    @staticmethod
    def die(text: str, pieces: Any, ids: Any) -> Any:
        os.kill(os.getpid(), int(text))

    @staticmethod
    def die_once(text: str, pieces: Any, ids: Any) -> Any:
        """Die of a signal, unless a file is there that says that this has happened."""
        path, number = text.split()
        if os.path.exists(path):
            return "done"
        with open(path, "w"):
            pass
        os.kill(os.getpid(), int(number))

    @staticmethod
    def talk(text: str, pieces: Any, ids: Any) -> Any:
        print("this would be read as a result")
        os.write(1, b"and so would this")
        return sys.stdin.read()

    @staticmethod
    def refuse(text: str, pieces: Any, ids: Any) -> Any:
        raise GrammarTooLargeError(text)

    @staticmethod
    def starve(text: str, pieces: Any, ids: Any) -> Any:
        return bytes(3 << 30)

    @staticmethod
    def recurse(text: str, pieces: Any, ids: Any) -> Any:
        return Actions.recurse(text, pieces, ids)

    @staticmethod
    def panic(text: str, pieces: Any, ids: Any) -> Any:
        raise Panic(text)

    @staticmethod
    def unpickled(text: str, pieces: Any, ids: Any) -> Any:
        return lambda: None


messages.confine = lambda: ""  # pipes of the tests are opened in jobs

if __name__ == "__main__":
    signal.setitimer = set_timer
    serve(prepare)
