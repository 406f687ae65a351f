import inspect
import re
import sys
from pathlib import Path

import pytest

from photonlite.api import Options, VisionModel
from photonlite.api.signatures import PlainOptions
from photonlite.config import EngineConfig, EngineSettings
from photonlite.request import SETTINGS, RequestSettings

ROOT = Path(__file__).resolve().parents[1]
SNIPPETS = ROOT / "tests" / "user_types" / "answers.py"


def test_typed_settings_are_those_there_are() -> None:
    assert tuple(RequestSettings.__annotations__) == SETTINGS
    named = {name: hint.__forward_arg__ for name, hint in EngineSettings.__annotations__.items()}
    assert named == EngineConfig.__annotations__


@pytest.mark.long(first=True)
def test_users_get_types_under_mypy_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each expected error is reported, nothing else is, and each `assert_type` holds."""
    api = pytest.importorskip("mypy.api")
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    monkeypatch.chdir(SNIPPETS.parent)  # away from the settings of photonlite's own run
    lines = SNIPPETS.read_text().splitlines()
    wanted = {(number, found[1]) for number, line in enumerate(lines, 1) if (found := re.search("# error: (.+)", line))}

    cache = ROOT / ".mypy_cache" / "users"
    command = ["--strict", "--config-file", "", "--follow-imports", "silent", "--cache-dir", str(cache)]
    output, errors, _ = api.run([*command, "--python-executable", sys.executable, SNIPPETS.name])

    assert errors == ""
    reported = {(int(number), code) for number, code in re.findall(r":(\d+): error: .*\[([\w-]+)\]", output)}
    assert reported == wanted, output
    assert len(wanted) > 10


def test_overloads_of_query_take_what_it_takes() -> None:
    own = {*inspect.signature(VisionModel.query).parameters} - {"self", "options"}
    spelled = {"image", "question", "stream", "settings", "schema"}

    assert own - spelled == {*PlainOptions.__annotations__} - {*Options.__annotations__}
