"""Alerts and dashboard name metrics that a real server has, and labels that these have."""

import itertools
import json
import re
import shutil
import subprocess
from collections import defaultdict
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.routes.service import STALLED_S
from tests.deploy.files import DEPLOY, documents, text_of
from tests.serving import serve

OF_PROMETHEUS = {"instance", "job"}  # labels that it gives to whatever it scrapes
PROMTOOL = shutil.which("promtool")
NAME = re.compile(r"\b(?:photonlite|process)_\w+")
SELECTOR = re.compile(r"\b((?:photonlite|process)_\w+)\{([^}]*)\}")

DASHBOARD = json.loads(text_of("dashboard.json"))
TARGETS = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]


def rules() -> list[dict[str, Any]]:
    [document] = documents("alerts.yaml")
    return [rule for group in document["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    queries = [variable["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    return [*(rule["expr"] for rule in rules()), *(expression for _, expression, _ in TARGETS), *queries]


@pytest.fixture(scope="module")
def metrics() -> dict[str, dict[str, set[str]]]:
    """Values of the labels of each metric, as a server of a real engine shows them."""
    found: dict[str, dict[str, set[str]]] = {}
    with serve() as model:
        asked = TestClient(create_app(model, ServerConfig()))
        assert asked.post("/v1/query", json={"question": "why?"}).status_code == 200
        assert asked.post("/v1/query", json={"question": " "}).status_code == 422
        for family in text_string_to_metric_families(asked.get("/metrics").text):
            for sample in family.samples:
                labels = found.setdefault(sample.name, defaultdict(set))
                for label, value in sample.labels.items():
                    labels[label].add(value)
    return found


def test_every_metric_is_there(metrics: dict[str, Any]) -> None:
    named = set(NAME.findall(" ".join(expressions())))

    assert len(named) > 40
    assert named <= set(metrics)


def test_selectors_match_labels_that_there_are(metrics: dict[str, dict[str, set[str]]]) -> None:
    for name, selector in itertools.chain.from_iterable(map(SELECTOR.findall, expressions())):
        for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', selector):
            assert label in OF_PROMETHEUS | metrics[name].keys(), name
            if label == "route":  # statuses come with failures
                assert operator == "=~"
                assert any(re.fullmatch(value, route) for route in metrics[name]["route"])


def test_sums_are_by_labels_that_there_are(metrics: dict[str, dict[str, set[str]]]) -> None:
    for expression in expressions():
        for grouped, name in re.findall(r"sum by \(([^)]*)\) \(\s*rate\((\w+)", expression):
            assert {label.strip() for label in grouped.split(",")} <= OF_PROMETHEUS | metrics[name].keys(), expression
    for _, expression, legend in TARGETS:
        for label in re.findall(r"\{\{(\w+)\}\}", legend):
            assert label in expression or label in OF_PROMETHEUS, expression


def test_alerts_say_what_and_how_bad() -> None:
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["alert"].startswith("Photonlite")
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_the_alert_of_a_stuck_engine_has_the_servers_limit() -> None:
    [stuck] = [rule["expr"] for rule in rules() if rule["alert"] == "PhotonliteEngineStuck"]

    assert stuck == f"photonlite_engine_last_tick_seconds > {STALLED_S:.0f}"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_prometheus_understands_the_rules() -> None:
    checked = subprocess.run([str(PROMTOOL), "check", "rules", str(DEPLOY / "alerts.yaml")], capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_panels_have_one_place_each_and_the_chosen_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = set(itertools.product(columns, lines))
        assert max(columns) < 24
        assert taken.isdisjoint(cells)
        taken |= cells
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all("$instance" in target["expr"] for target in panel["targets"])
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "instance"]
