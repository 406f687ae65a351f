"""The command line: `photonlite detect desk.png banana`.

Exit codes: 0 success, 1 a comparison of `verify` failed, 2 bad input (one line on stderr), 130 interrupted, 141
stdout's pipe was closed. `serve` also 1 for a stuck thread, 70 where the engine has died, 75 where it hung, and 128 and
the number of a signal that ended it, such as that of a second SIGTERM.
"""

import io
import os
import sys
import traceback
from collections.abc import Sequence

from photonlite.cli.checkpoints import run_models
from photonlite.cli.export import run_export
from photonlite.cli.parser import parse
from photonlite.cli.quantize import run_quantize
from photonlite.cli.realtime.command import run_realtime
from photonlite.cli.run import run_skill
from photonlite.cli.serve import run_server
from photonlite.cli.store import run_store
from photonlite.cli.tune import run_tune
from photonlite.cli.verify import run_verify
from photonlite.cli.video import is_video, run_video
from photonlite.errors import PhotonliteError
from photonlite.images.decode import ignore_pillow_warnings

BAD_INPUT = 2
# The shell's convention for a process ended by a signal: 128 and the signal's number.
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, from the process's arguments by default; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    _open_standard_files()
    ignore_pillow_warnings()
    try:
        code = _run(arguments)
        sys.stdout.flush()  # raises here for a closed pipe, not while Python shuts down
    except BrokenPipeError:
        # Otherwise Python fails to flush what is still buffered at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (PhotonliteError, OSError) as error:
        if "--debug" in arguments:
            traceback.print_exc()
        print("photonlite: error:", " ".join(_described(error).split()), file=sys.stderr)
        return BAD_INPUT
    return code


def _described(error: Exception) -> str:
    """Return an error's message; of one of the system's, without its number: "/boxes.png: Permission denied"."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename!s:.200}: {error.strerror}"


def _open_standard_files() -> None:
    """Open those of stdin, stdout and stderr that were closed at the start, as by `2>&-`, to nothing.

    Else sockets and files would get their numbers, and whatever is printed, here or in a process started from here.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that is not in Unicode must not end the output
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: list[str]) -> int:
    try:
        options = parse(arguments)
    except SystemExit:  # argparse has printed the help or the version
        return 0
    options.arguments = arguments  # `serve` starts a process with the same ones
    if is_video(options):
        return run_video(options)
    commands = {"export": run_export, "models": run_models, "realtime": run_realtime, "serve": run_server}
    commands |= {"quantize": run_quantize, "store": run_store, "tune": run_tune, "verify": run_verify}
    return commands.get(options.command, run_skill)(options)
