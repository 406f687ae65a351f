import io
import json
import os
import subprocess
import sys

import pytest

from photonlite.server.transport.logs import json_lines, library_messages
from tests.server.live import ROOT, ServerProcess


def test_writes_to_descriptor_2_become_log_lines() -> None:
    stream = io.StringIO()
    before = sys.stderr
    with json_lines(stream), library_messages():
        os.write(2, b"TIFFReadDirectory: Warning, Unknown field \xff.\n\n" + b"x" * 5000 + b"\n")
        print("of Python's own", file=sys.stderr)

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["event"] for line in lines} == {"library message"}
    assert lines[0]["text"] == "TIFFReadDirectory: Warning, Unknown field \\xff."
    assert lines[0]["level"] == "warning"
    assert all(len(line["text"]) <= 300 for line in lines)
    assert "of Python" not in stream.getvalue()
    assert sys.stderr is before


CODE = """
import os, sys
from photonlite.server.transport.logs import library_messages
from photonlite.server.transport.logs import json_lines
with json_lines(sys.stdout), library_messages():
    os.system("echo of a child >&2")
    print("of Python", file=sys.stderr)
os.write(2, b"afterwards\\n")
"""


def test_stderr_of_children_is_logged_and_restored_afterwards() -> None:
    with ServerProcess("-c", CODE) as process:
        assert process.wait() == 0

    assert [line["text"] for line in process.lines] == ["of a child"]
    assert process.err == ["of Python\n", "afterwards\n"]


def test_a_process_without_stderr_logs_no_library_messages() -> None:
    code = "import os; os.close(2)\n" + CODE.rpartition("os.write")[0].replace("print(", "(lambda *a, **k: 0)(")
    with ServerProcess("-c", code) as process:
        assert process.wait() == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_stderr_without_space_ends_nothing() -> None:
    said = "    try:\n        print('lost', file=sys.stderr)\n    except OSError:\n        print('no space')\n"
    code = CODE.rpartition("os.write")[0].replace('    print("of Python", file=sys.stderr)\n', said)
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=full)

    assert ended.returncode == 0
    assert all(text in ended.stdout for text in (b"no space", b"of a child"))
