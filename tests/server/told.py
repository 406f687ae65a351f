"""A server in a process of its own whose fake model says when it is asked, and answers when told to.

It says "serving on PORT" and "begun" on stderr. A byte on stdin lets it answer.
"""

import asyncio
import json
import os
import sys
import threading
from typing import Any

from photonlite.server.app import create_app
from photonlite.server.calls import Call
from photonlite.server.config import ServerConfig
from photonlite.server.run import run
from photonlite.server.transport.listening import listen
from photonlite.server.transport.logs import json_lines
from tests.server.fake import FakeModel


class ToldModel(FakeModel):
    """Hangs until a byte comes on stdin."""

    async def _take(self, call: Call) -> None:
        await super()._take(call)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop,), daemon=True).start()
        say("begun")

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not sys.stdin: a thread that waits in its buffer would hold the interpreter up at the end.
        if os.read(0, 1):
            loop.call_soon_threadsafe(self.release)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(settings: dict[str, Any]) -> int:
    config = ServerConfig(**{"port": 0, **settings})
    fake = ToldModel()

    def announce(host: str, port: int) -> None:
        say(f"serving on {port}")

    fake.hang()
    with json_lines(sys.stdout):
        return run(create_app(fake, config), config, listen(config), on_start=announce)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
