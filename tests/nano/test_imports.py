"""Imports inside bench/nano have no cycle, and its folders import only those before them."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("scenes", "questions", "training", "evaluation", "adapter", "demo")


def import_graph(root, package):
    """The modules below a package, and which of them each imports."""
    paths = {".".join(path.relative_to(root).with_suffix("").parts): path for path in root.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items() if name.startswith(package)}
    graph = {}
    for name, path in modules.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
                found = [f"{node.module}.{alias.name}" for alias in node.names]
                graph[name] |= {one if one in modules else node.module for one in found}
            elif isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names if alias.name in modules}
    return graph


def cycle_in(graph):
    """A list of modules that import one another in a circle, None where there is none."""
    done = set()

    def visit(name, way):
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return None
        found = next((circle for one in sorted(graph[name]) if (circle := visit(one, [*way, name]))), None)
        done.add(name)
        return found

    return next((circle for name in sorted(graph) if (circle := visit(name, []))), None)


def upward(graph, package):
    """Imports from a folder into a later one."""
    rank = {f"{package}.{folder}": place for place, folder in enumerate(FOLDERS)}

    def place(name):
        return rank.get(".".join(name.split(".")[: package.count(".") + 2]), -1)

    return [f"{name} imports {one}" for name, found in graph.items() for one in found if place(one) > place(name)]


@pytest.fixture(scope="module")
def graph():
    return import_graph(ROOT, "bench.nano")


def test_every_module_is_in_a_folder_with_a_place(graph):
    here = ROOT / "bench" / "nano"
    assert {path.name for path in here.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(FOLDERS)
    assert [path.name for path in here.glob("*.py")] == ["__init__.py"]
    assert len(graph) > 50


def test_no_module_imports_itself_in_a_circle(graph):
    assert cycle_in(graph) is None


def test_folders_import_only_those_before_them(graph):
    assert upward(graph, "bench.nano") == []


@pytest.mark.parametrize(("place", "text"), [("scenes/a.py", "from bench.nano.demo import b"), ("scenes/a.py", "")])
def test_a_wrong_import_and_a_circle_are_found(tmp_path, place, text):
    files = {"demo/b.py": "from bench.nano.scenes.a import x", place: text}
    for name, content in files.items():
        path = tmp_path / "bench" / "nano" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    graph = import_graph(tmp_path, "bench.nano")
    assert upward(graph, "bench.nano") == (["bench.nano.scenes.a imports bench.nano.demo.b"] if text else [])
    circle = ["bench.nano.demo.b", "bench.nano.scenes.a", "bench.nano.demo.b"]
    assert cycle_in(graph) == (circle if text else None)
