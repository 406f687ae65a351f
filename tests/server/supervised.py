"""A supervised server that starts in a moment: no model, no torch. Run by `test_supervisor`.

GET /state tells its pid, restarts and device. /end/N ends the process with exit code N, /hold is never answered,
/silent stops the beats. It says "loading" and "serving on PORT" on stderr.
"""

import contextlib
import http.server
import json
import os
import signal
import socket
import sys
import threading
from typing import Any

from photonlite.server import supervisor
from photonlite.server.link import Link

OPTIONS: dict[str, Any] = {
    "max_restarts": 5,
    "constants": {"LONGEST_WAIT_S": 0.01},  # of `supervisor`
    "fails": {},  # exit code, instead of serving, of the process after so many restarts
    "gate": None,  # a FIFO that processes open, and wait for its writer, after so many restarts
    "gated": 1,
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def serve(link: Link, options: dict[str, Any]) -> int:
    say("loading")
    restarts = sum(link.restarts.values())
    if (code := options["fails"].get(str(restarts))) is not None:
        return int(code)
    if options["gate"] and restarts >= options["gated"]:
        with open(options["gate"]) as gate:
            gate.read()
    beating = threading.Event()
    beating.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/end/"):
                os._exit(int(self.path.rpartition("/")[2]))
            if self.path == "/hold":
                say("held")
                threading.Event().wait()
            if self.path == "/silent":
                beating.clear()
            state = {"pid": os.getpid(), "restarts": link.restarts, "device": link.device}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(state).encode())

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def __init__(self) -> None:
            super().__init__(link.listener.getsockname(), Handler, bind_and_activate=False)
            self.socket.close()
            self.socket = link.listener
            self.socket.listen(64)

    server = Server()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    signal.signal(signal.SIGHUP, lambda *_: say("hup"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    link.ready("cpu")
    say(f"serving on {link.listener.getsockname()[1]}")
    while not stopped.wait(0.1):
        if beating.is_set():
            link.beat()
    say("stopped")
    return 0


def main(text: str) -> int:
    options = OPTIONS | json.loads(text)
    link = Link.from_environment()
    if link is not None:
        return serve(link, options)
    for name, value in options["constants"].items():
        setattr(supervisor, name, value)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        command = (sys.executable, "-X", "faulthandler", "-m", "tests.server.supervised", text)
        code = supervisor.Supervisor(command, listener, options["max_restarts"]).run()
    loaded = {"torch", "numpy", "uvicorn", "starlette"} & set(sys.modules)
    say(f"supervisor loaded {sorted(loaded)}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
