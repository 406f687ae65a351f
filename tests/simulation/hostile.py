"""A request whose own objects may raise: at the n-th time that the engine touches one of their members.

What the simulation itself touches does not count.
"""

import dataclasses
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

import photonlite
from photonlite.image_inputs import CropsLike, ImageRef, PrefixPages
from photonlite.request import Allowed, Grammar, Request, Token
from photonlite.sequence import Sequence, Sink

_PACKAGE = Path(photonlite.__file__).parent

MEMBERS = (
    *("request", "key", "crops", "pixels", "tiling", "failure", "request_crops", "drop_crops"),
    *("allowed", "forced", "permits", "ahead", "run", "finish_reason", "accept", "on_token", "on_finish"),
)
"""What may raise: any field of the request; of the image and its crops; of the grammar and what it allows; the sink's
methods.
"""


class HostileFault(RuntimeError):  # noqa: N818 - what a broken plug-in raises
    """Raised by a member; printing it raises as well."""

    def __str__(self) -> str:
        raise ZeroDivisionError("not even this can be printed")

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Hostility:
    """How a request misbehaves.

    Attributes:
        member: Which of `MEMBERS` raises.
        at: The touch at which it does, from 1 on.
        always: Whether it goes on doing so; else only that one touch fails.
    """

    member: str
    at: int
    always: bool


class Trap:
    """Counts touches of a member, and raises.

    Args:
        hostility: Which member, and when.

    Attributes:
        sites: Functions of the package that it has raised in, as "scheduler/queues.py begin".
        members: That the package has touched.
    """

    def __init__(self, hostility: Hostility) -> None:
        self.sites: list[str] = []
        self.members: set[str] = set()
        self._hostility = hostility
        self._touches = 0

    def touch(self, member: str) -> None:
        """Count a touch; raise if it is the chosen one."""
        hostility = self._hostility
        caller = sys._getframe(2).f_code
        module = _module(caller.co_filename)
        if module is None:
            return
        self.members.add(member)
        if member != hostility.member:
            return
        self._touches += 1
        if self._touches == hostility.at or (hostility.always and self._touches > hostility.at):
            self.sites.append(f"{module} {caller.co_name}")
            raise HostileFault


@cache
def _module(file: str) -> str | None:
    """Return a file's path inside the package; None for a file outside."""
    path = Path(file)
    return path.relative_to(_PACKAGE).as_posix() if path.is_relative_to(_PACKAGE) else None


class HostileRequest:
    """A request whose fields raise.

    Args:
        inner: Has them.
        trap: Raises.
    """

    def __init__(self, inner: Request, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    def __getattr__(self, name: str) -> Any:
        self._trap.touch("request")
        return getattr(self._inner, name)


class HostileCrops:
    """Crops that raise when they are read."""

    def __init__(self, inner: CropsLike, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        self._trap.touch("pixels")
        return self._inner.pixels

    @property
    def tiling(self) -> tuple[int, int]:
        self._trap.touch("tiling")
        return self._inner.tiling


class HostileImage:
    """An image that raises when it is used."""

    size = None

    def __init__(self, inner: ImageRef, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    @property
    def key(self) -> str:
        self._trap.touch("key")
        return self._inner.key

    @property
    def crops(self) -> HostileCrops | None:
        self._trap.touch("crops")
        crops = self._inner.crops
        return None if crops is None else HostileCrops(crops, self._trap)  # type: ignore[arg-type]

    @property
    def failure(self) -> BaseException | None:
        self._trap.touch("failure")
        return self._inner.failure

    def request_crops(self, pages: PrefixPages | None) -> None:
        self._trap.touch("request_crops")
        self._inner.request_crops(pages)

    def drop_crops(self) -> None:
        self._trap.touch("drop_crops")
        self._inner.drop_crops()


class HostileAllowed(Allowed):
    """An `Allowed` that raises when it is read."""

    __slots__ = ("trap",)
    trap: Trap

    @property
    def forced(self) -> int | None:
        self.trap.touch("forced")
        return self.ids[0] if self.ids is not None and len(self.ids) == 1 else None

    def permits(self, token_id: int) -> bool:
        self.trap.touch("permits")
        return Allowed.permits(self, token_id)


class HostileGrammar:
    """A grammar that raises, as does what it allows."""

    def __init__(self, inner: Grammar, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    @property
    def allowed(self) -> Allowed:
        self._trap.touch("allowed")
        return self._trapped(self._inner.allowed)

    @property
    def ahead(self) -> Allowed | None:
        self._trap.touch("ahead")
        ahead = self._inner.ahead
        return None if ahead is None else self._trapped(ahead)

    @property
    def expected_run(self) -> tuple[int, ...]:
        self._trap.touch("run")
        return self._inner.expected_run

    @property
    def run(self) -> tuple[int, ...]:
        self._trap.touch("run")
        return self._inner.run

    @property
    def finish_reason(self) -> str | None:
        self._trap.touch("finish_reason")
        return self._inner.finish_reason

    def accept(self, token: Token) -> None:
        self._trap.touch("accept")
        self._inner.accept(token)

    def _trapped(self, allowed: Allowed) -> HostileAllowed:
        values = {field.name: getattr(allowed, field.name) for field in dataclasses.fields(Allowed)}
        made = HostileAllowed(**values)
        object.__setattr__(made, "trap", self._trap)
        return made


class HostileSink:
    """A sink that raises after it has received a token or the end."""

    def __init__(self, inner: Sink, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    @property
    def end(self) -> object:
        return self._inner.end  # type: ignore[attr-defined]

    def on_token(self, token: Token) -> None:
        self._inner.on_token(token)
        self._trap.touch("on_token")

    def on_finish(self, sequence: Sequence) -> None:
        self._inner.on_finish(sequence)
        self._trap.touch("on_finish")


def draw_hostility(random: Random) -> Hostility:
    """Draw how a request misbehaves."""
    return Hostility(random.choice(MEMBERS), 1 + int(random.expovariate(0.5)), random.random() < 0.5)
