import subprocess
import sys

import pytest

from bench.serve.options import parse
from bench.serve.server import Baseline, ChildError, child, started, wait_for
from tests.guard import GUARD

LINE = {
    "event": "baseline",
    "machine": "m",
    "model": "n",
    "in_process": {"detect": {"rate": 5.0, "p50_s": 0.5}},
    "hand_over_s": 0.001,
}
SERVER = """
import json, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("no json")
print(json.dumps({"event": "listening", "port": 1234}), flush=True)
signal.pause()
"""


def test_a_process_is_waited_for_and_told_to_stop():
    with child(["-c", SERVER], GUARD) as lines:
        assert wait_for(lines, "listening", GUARD)["port"] == 1234
        assert lines.process.poll() is None
    assert lines.process.returncode == 0


def test_a_process_that_fails_says_why():
    code = "import sys; sys.exit('no such device')"
    with child(["-c", code], GUARD) as lines, pytest.raises(ChildError, match="ended with 1: no such device"):
        wait_for(lines, "listening", GUARD)


def test_a_process_that_is_never_ready_is_given_up():
    with child(["-c", SERVER], GUARD) as lines:
        wait_for(lines, "listening", GUARD)
        with pytest.raises(ChildError, match=r"did not in 0\.01 s"):
            wait_for(lines, "baseline", 0.01)


def test_a_baseline_is_read_from_its_line():
    assert Baseline.of(LINE) == Baseline("m", "n", {"detect": 5.0}, {"detect": 0.5}, 0.001)


@pytest.mark.parametrize("shape", ["shipped", "tiny"])
def test_the_shipped_checkpoint_is_served_by_the_command_and_random_weights_by_whoever_measured_them(
    shape, monkeypatch
):
    asked = []

    def popen(arguments, **files):
        asked.append(arguments[1:])
        says = [LINE] if "bench.serve.subject" in arguments else []
        if "--serve" in arguments or "serve" in arguments:
            says = [*says, {"event": "listening", "port": 5}]
        code = "import json\nfor line in " + repr(says) + ": print(json.dumps(line))"
        return real([sys.executable, "-c", code], **files)

    real = subprocess.Popen
    monkeypatch.setattr("bench.serve.server.subprocess.Popen", popen)
    options = parse("", ["--device", "cpu", "--shape", shape, "--max-open", "9", "--only", "detect"])
    with started(options) as (baseline, port):
        assert (baseline, port) == (Baseline.of(LINE), 5)
    if shape == "shipped":
        assert [arguments[1] for arguments in asked] == ["bench.serve.subject", "photonlite.cli"]
        assert asked[1][2:] == ["serve", "--port", "0", "--device", "cpu", "--max-open", "9"]
    else:
        assert [arguments[1] for arguments in asked] == ["bench.serve.subject"]
        assert asked[0][-2:] == ["--serve", "9"]
    assert asked[0][asked[0].index("--skills") + 1] == "detect"
