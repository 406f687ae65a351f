"""What becomes of a worker that cannot be started. The pools that use workers test the rest."""

import errno
import os
import socket
import tempfile
from typing import Any

import pytest

from photonlite.errors import EngineError
from photonlite.processes.worker import WorkerProcess


class Worker(WorkerProcess):
    purpose = "does nothing"


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize(
    ("owner", "name", "code"),
    [(tempfile, "TemporaryFile", errno.ENOSPC), (socket, "socketpair", errno.EMFILE), (None, "", errno.ENOENT)],
)
def test_what_a_worker_lacks_is_a_typed_error_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, code: int
) -> None:
    def lacking(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    if owner is not None:
        monkeypatch.setattr(owner, name, lacking)
    before = descriptors()

    with pytest.raises(EngineError, match=f"does nothing does not start: .*{os.strerror(code)}"):
        Worker(("/no/such/program",))

    assert descriptors() == before
