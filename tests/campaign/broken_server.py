"""In place of `photonlite serve`: a parent, and a child that is ready and answers every request with an untyped 500."""

import http.server
import os
import signal
import subprocess
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(200, b'{"status": "ready"}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(500, b"oops")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main(arguments: list[str]) -> int:
    if os.environ.get("BROKEN_CHILD"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        port = int(arguments[arguments.index("--port") + 1])
        http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
    child = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "BROKEN_CHILD": "1"})
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
