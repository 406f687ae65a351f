import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.live import live_model

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "http://127.0.0.1:2020"
READMES = ("README.md", "photonlite/server/README.md")
LINES = [line for name in READMES for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
COMMANDS = [line for line in LINES if re.match(f"curl .*{ADDRESS}", line)]


@pytest.fixture(scope="module")
def server():
    with live_model() as running:
        yield running


def test_readme_shows_how_to_ask():
    assert len(COMMANDS) >= 4


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_are_answered(server, command):
    words = shlex.split(command.replace(ADDRESS, server.url))
    done = subprocess.run([*words, "--silent", "--show-error", "--fail"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = done.stdout
    if "detect" in command:
        assert answer.count('"x_min"') == 2
    elif "point" in command:
        assert answer.count('"x"') >= 3
    elif "choices" in command:
        assert set(json.loads(answer)["scores"]) == {"yes", "no"}
    elif "query" in command:
        assert '"completed": true' in answer or '"completed":true' in answer
    else:
        assert answer
