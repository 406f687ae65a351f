import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import photonlite
from photonlite import errors

ROOT = Path(__file__).resolve().parents[1]


def test_public_names_are_pinned() -> None:
    assert photonlite.__all__ == [
        "Answer",
        "Box",
        "Caption",
        "Detections",
        "EngineConfig",
        "Metrics",
        "PhotonliteError",
        "Point",
        "Points",
        "RealtimeLoop",
        "Segments",
        "Tracker",
        "VisionModel",
        "__version__",
        "errors",
        "load",
        "quantize",
        "to_coco",
        "to_supervision",
        "verify",
    ]


@pytest.mark.parametrize("name", photonlite.__all__)
def test_each_public_name_can_be_imported(name: str) -> None:
    assert getattr(photonlite, name) is not None
    assert name in dir(photonlite)


def undocumented(owner: type) -> list[str]:
    """Names of the class and of its public methods and properties that lack a docstring."""
    members = {
        name: member
        for base in owner.__mro__
        if base.__module__.startswith("photonlite")
        for name, member in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property | classmethod))
    }
    return [name for name, member in members.items() if not member.__doc__] + (
        [] if owner.__doc__ else [owner.__name__]
    )


@pytest.mark.parametrize("name", [name for name in photonlite.__all__ if isinstance(getattr(photonlite, name), type)])
def test_each_public_class_is_documented(name: str) -> None:
    assert undocumented(getattr(photonlite, name)) == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'laod'"):
        _ = photonlite.laod


def test_every_error_is_a_photonlite_error() -> None:
    found = [value for value in vars(errors).values() if isinstance(value, type)]

    assert len(found) > 10
    assert all(issubclass(error, photonlite.PhotonliteError) for error in found)


def test_importing_photonlite_imports_nothing_slow() -> None:
    slow = "{'torch', 'numpy', 'PIL', 'pydantic', 'transformers'}"
    code = f"import sys, photonlite; print(sorted({slow} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert process.stdout == "[]\n"
