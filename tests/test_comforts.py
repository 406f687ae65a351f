"""The table of lines of user code: its figures are those of the blocks below it, and photonlite's blocks run."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from photonlite.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "bench" / "results" / "comforts.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
HEADINGS, _, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", PAGE, re.M)
]


def blocks(section: str) -> dict[str, str]:
    """The code of a section by library."""
    return dict(re.findall(r"```\w+\n# (\w+)\n(.*?)```", section, re.DOTALL))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table_counts_the_lines(row: list[str]) -> None:
    code = blocks(SECTIONS[row[0]])
    counts = [str(len(code[library].splitlines())) if library in code else "-" for library in HEADINGS[1:]]
    assert row[1:] == counts


def test_every_task_has_its_row() -> None:
    assert [row[0] for row in ROWS] == list(SECTIONS)


@pytest.mark.long
@pytest.mark.parametrize("task", SECTIONS)
def test_photonlites_code_runs(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    for folder in (tmp_path, tmp_path / "photos"):
        shutil.copy(ROOT / "assets" / "desk.png", folder)
    monkeypatch.chdir(tmp_path)
    code = blocks(SECTIONS[task])["photonlite"]
    if not code.startswith("photonlite "):
        exec(compile(code, task, "exec"), {"__name__": "comforts"})
        return
    with Image.open(ROOT / "assets" / "clip" / "clip.webp") as clip:
        first, *others = (clip.seek(number) or clip.convert("RGB") for number in range(8))
    first.save("clip.webp", save_all=True, append_images=others, duration=33)
    assert main([word.replace("clip.mp4", "clip.webp") for word in shlex.split(code)[1:]]) == 0
