import importlib
import subprocess
import sys
from typing import Any

import pytest

from photonlite.errors import ConfigError
from photonlite.models.families import FAMILIES, family_of

FUNCTIONS = ("read_config", "find_tokenizer", "skills_of", "rank_sizes", "outline", "text_precisions", "load")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_every_function_of_the_interface(name: str) -> None:
    module = importlib.import_module(f"photonlite.models.{name}.checkpoint")

    assert all(callable(getattr(module, one)) for one in FUNCTIONS)
    for kind in FAMILIES[name].model_types:
        assert family_of({"model_type": kind}) is module


def test_no_two_families_share_a_model_type() -> None:
    kinds = [kind for entry in FAMILIES.values() for kind in entry.model_types]

    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("raw", [{"model_type": "llama"}, {"config": {"model_type": "llama"}}, {"model_type": 7}])
def test_an_unknown_type_is_refused_with_the_known_ones(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model_type '(llama|7)' is of no family.*it knows moondream2, .*nano"):
        family_of(raw)


@pytest.mark.long
def test_loading_the_shipped_checkpoint_imports_no_other_family_and_not_transformers() -> None:
    code = """
import sys
import photonlite
photonlite.load(device="cpu").close()
families = {name.split(".")[2] for name in sys.modules if name.startswith("photonlite.models.") and "." in name[18:]}
families -= {"adapters"}  # of every family
print(sorted(families), "transformers" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "['moondream'] False"
