"""`photonlite serve` under its supervisor, where the first processes come to grief. Run by `test_recovery`.

The first one's card is lost: every forward pass raises. The second one's engine hangs in a forward pass. Later ones are
whole. Arguments: those of `photonlite serve`.
"""

import sys
import threading
from collections.abc import Sequence
from typing import Any

from photonlite.cli import main
from photonlite.runner.torch_model_runner import TorchModelRunner
from photonlite.server import supervisor
from photonlite.server.config import ServerConfig
from photonlite.server.link import Link
from photonlite.server.transport.listening import listen


def lost(*_: Any) -> None:
    raise RuntimeError("CUDA error: unspecified launch failure")


def stuck(*_: Any) -> None:
    threading.Event().wait()


def run(arguments: Sequence[str]) -> int:
    link = Link.from_environment()
    if link is None:
        supervisor.LONGEST_WAIT_S = 0.1  # many restarts in a row
        command = (sys.executable, "-m", "tests.server.sabotaged", *arguments)
        with listen(ServerConfig(port=0)) as listener:
            return supervisor.Supervisor(command, listener, max_restarts=10**6).run()
    fault = {0: lost, 1: stuck}.get(sum(link.restarts.values()))
    if fault is not None:
        TorchModelRunner.prefill = TorchModelRunner.decode = fault  # type: ignore[method-assign, assignment]
    if fault is stuck:  # others have the time that a busy machine may need
        arguments = (*arguments, "--hang-seconds", "4")
    Link.from_environment = classmethod(lambda cls, environ=None: link)  # type: ignore[method-assign, assignment]
    return main(["serve", *arguments])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
