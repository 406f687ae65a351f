"""`photonlite serve` whose first step works on the host for long, as while kernels compile. Run by `compiling`.

`CAMPAIGN_COMPILING_S` says how many seconds: Python source is compiled meanwhile on the engine thread.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from photonlite.cli import main
from photonlite.cli.parser import parse
from photonlite.cli.settings import read_settings
from photonlite.runner.step_executor import StepExecutor
from photonlite.server import supervisor
from photonlite.server.link import Link
from photonlite.server.transport.listening import listen

_SOURCE = "\n".join(f"def f{number}(a, b):\n    return [a * {number} + b for _ in range(b)]" for number in range(2000))


def run(arguments: Sequence[str]) -> int:
    """Serve under a supervisor; its process is this program again."""
    link = Link.from_environment()
    if link is None:
        server = read_settings(parse(["serve", *arguments])).server
        command = (sys.executable, "-m", "bench.campaign.slow_compiler", *arguments)
        with listen(server) as listener:
            return supervisor.Supervisor(command, listener, server.max_restarts).run()
    seconds, launch = float(os.environ["CAMPAIGN_COMPILING_S"]), StepExecutor.launch

    def compile_first(executor: StepExecutor, step: Any) -> None:
        nonlocal seconds
        until, seconds = time.monotonic() + seconds, 0.0
        while time.monotonic() < until:
            compile(_SOURCE, "kernels", "exec")
        launch(executor, step)

    StepExecutor.launch = compile_first  # type: ignore[method-assign, assignment]
    Link.from_environment = classmethod(lambda cls, environ=None: link)  # type: ignore[method-assign, assignment]
    return main(["serve", *arguments])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
