"""Every import inside photonlite goes down the layers, at the top of its module."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "photonlite"
ROOT = Path(__file__).resolve().parents[1] / PACKAGE

# FACE is photonlite/__init__.py: it offers names of the API and of what lies below, and the command line imports it.
FACE = "__init__"
LAYERS = (
    {"errors", "hints", "settings", "config"}
    | {"images", "request", "results", "image_inputs", "sequence", "batch", "device", "observe", "processes", "pauses"},
    {"kernels", "cache", "grammar"},
    {"models", "scheduler", "skills"},
    {"runner"},
    {"tuning", "engine"},
    {"api", "realtime", "video", "ros", "verification", FACE},
    {"server", "cli", "ray"},
    {"__main__"},
)
LAYER_OF = {unit: layer for layer, units in enumerate(LAYERS) for unit in units}
# Mechanisms are usable alone; what is asked, what answers and what schedules meet in the engine only.
SEPARATE = {1, 2}


def unit_of(module: str, root: Path) -> str:
    """The layer table's name for a dotted module: photonlite.models.loading -> models."""
    first = module.removeprefix(PACKAGE).lstrip(".").split(".")[0]
    known = first and (first in LAYER_OF or (root / first).is_dir() or (root / f"{first}.py").is_file())
    return first if known else FACE


def imported_modules(node: ast.AST, package: str) -> list[str]:
    """The photonlite modules that one node imports; package is where a relative import starts."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        names = [f"{base}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        names = [str(node.args[0].value)] if called in {"import_module", "__import__"} else []
    else:
        names = []
    return [name for name in names if name == PACKAGE or name.startswith(PACKAGE + ".")]


def nodes_with_scope(node: ast.AST, local: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below node, and whether a function encloses it."""
    for child in ast.iter_child_nodes(node):
        yield child, local
        encloses = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from nodes_with_scope(child, local or encloses)


def violations(root: Path) -> list[str]:
    """What breaks the layering in the package at root, one line each."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        here = unit_of(".".join([PACKAGE, *parts]), root)
        package = ".".join([PACKAGE, *parts[:-1]])
        for node, local in nodes_with_scope(ast.parse(path.read_text())):
            for module in imported_modules(node, package):
                reason = objection(here, unit_of(module, root), local or isinstance(node, ast.Call))
                if reason:
                    found.append(f"{'/'.join(parts)}.py:{getattr(node, 'lineno', 0)} imports {module}: {reason}")
    return found


def objection(importer: str, imported: str, lazily: bool) -> str | None:
    for unit in (importer, imported):
        if unit not in LAYER_OF:
            return f"{unit} has no layer"
    mine, theirs = LAYER_OF[importer], LAYER_OF[imported]
    if lazily:
        return "not at the top of the module"
    if theirs > mine:
        return f"upward, from layer {mine} to layer {theirs}"
    if mine == theirs and mine in SEPARATE and importer != imported:
        return f"{importer} and {imported} never import each other"
    return None


@pytest.mark.long
def test_photonlite_keeps_its_layers() -> None:
    assert len(list(ROOT.rglob("*.py"))) > 1
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("results.py", "from photonlite.grammar.spec import GrammarSpec", "upward, from layer 0 to layer 1"),
        ("results.py", "from photonlite.grammar import spec", "upward"),
        ("results.py", "from photonlite import grammar", "upward"),
        ("results.py", "import photonlite.engine as engine", "upward"),
        ("results.py", "import photonlite", "upward, from layer 0 to layer 5"),
        ("results.py", "from photonlite import __version__", "upward, from layer 0 to layer 5"),
        ("models/moondream/text.py", "from ...runner import slots", "upward, from layer 2 to layer 3"),
        ("models/moondream/text.py", "from ... import engine", "upward"),
        ("images/crops.py", "if TYPE_CHECKING:\n    from photonlite.api import load", "upward"),
        ("images/crops.py", "try:\n    import photonlite.api\nexcept ImportError:\n    pass", "upward"),
        ("models/loading.py", "from photonlite.skills.base import Skill", "models and skills never import each other"),
        ("skills/detect.py", "from photonlite.scheduler import queues", "skills and scheduler never import each other"),
        ("scheduler/fifo.py", "import photonlite.models.base", "scheduler and models never import each other"),
        ("cache/pages.py", "from photonlite.grammar import mask", "cache and grammar never import each other"),
        ("api/model.py", "def load():\n    from photonlite.errors import InputError", "not at the top of the module"),
        ("api/a.py", "class A:\n    async def f(self):\n        from . import errors", "not at the top of the module"),
        ("api/model.py", "import_module('photonlite.errors')", "not at the top of the module"),
        ("api/model.py", "f = lambda: importlib.import_module('photonlite.errors')", "not at the top of the module"),
        ("helpers.py", "from photonlite import errors", "helpers has no layer"),
        ("api/model.py", "from photonlite import helpers", "helpers has no layer"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    root = tmp_path / PACKAGE
    for name in ("__init__.py", "errors.py", "helpers.py", "api/__init__.py", file):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / file).write_text(f"import torch\n{source}\n")

    found = violations(root)

    assert len(found) == 1
    assert found[0].startswith(file)
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("api/a.py", "from photonlite.engine import Engine\nfrom photonlite import errors\nimport photonlite.results"),
        ("config.py", "from photonlite.errors import SettingsError"),
        ("engine.py", "from photonlite.tuning.search import search\nfrom . import runner, scheduler, skills"),
        ("models/loading.py", "from .moondream.config import Config\nfrom ..images.crops import CropSpec"),
        ("cli/__init__.py", "import photonlite\nfrom photonlite import __version__\nfrom . import parser"),
        ("results.py", "def to_supervision(self):\n    import supervision\n    from torch import nn"),
        ("results.py", "import photonlite_extras"),
        ("__init__.py", "def __getattr__(name):\n    return import_module(HOMES[name])"),
    ],
)
def test_downward_and_foreign_imports_pass(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / PACKAGE / file
    path.parent.mkdir(parents=True)
    path.write_text(source)

    assert violations(tmp_path / PACKAGE) == []
