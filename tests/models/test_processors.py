import json
from pathlib import Path
from typing import Any

import pytest

from photonlite.errors import ConfigError
from photonlite.models.processors import read_processor

OLD, NEW = {"max_pixels": 1}, {"size": {"longest_edge": 2}}
COMBINED = {"image_processor": NEW, "processor_class": "Qwen3VLProcessor"}
OTHERS = {"image_seq_length": 1024, "processor_class": "PaliGemmaProcessor"}


@pytest.mark.parametrize(
    ("own", "combined", "wanted"),
    [
        (None, None, None),
        (OLD, None, OLD),
        (None, COMBINED, NEW),
        (OLD, COMBINED, NEW),
        (OLD, OTHERS, OLD),
        (None, OTHERS, None),
    ],
)
def test_settings_are_those_that_were_written_last(tmp_path: Path, own: Any, combined: Any, wanted: Any) -> None:
    for name, content in (("preprocessor_config.json", own), ("processor_config.json", combined)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))

    assert read_processor(tmp_path) == wanted


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"processor_config\.json cannot be read"):
        read_processor(tmp_path)
