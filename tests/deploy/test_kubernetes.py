"""The manifests for Kubernetes."""

from pathlib import Path
from typing import Any

import pytest

from photonlite.server.config import ServerConfig
from photonlite.server.routes.docs import document
from photonlite.server.transport.connections import PROBES
from tests.deploy.files import LONGEST_STOP_S, command, documents, environment, one, settings_of

PORT = ServerConfig().port


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    return {manifest["kind"]: manifest for manifest in documents("kubernetes.yaml")}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Any]) -> Any:
    return manifests["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod: Any) -> Any:
    [found] = pod["containers"]
    return found


@pytest.mark.parametrize(
    ("probe", "path"), [("startupProbe", "/ready"), ("readinessProbe", "/ready"), ("livenessProbe", "/health")]
)
def test_probes_ask_routes_that_answer_without_a_key_and_always(container: Any, probe: str, path: str) -> None:
    asked = container[probe]["httpGet"]

    assert asked == {"path": path, "port": "http"}
    assert path in PROBES
    described = document(ServerConfig(api_keys=("a-key",)))["paths"][path]["get"]
    assert described["security"] == [{}]
    assert "503" in described["responses"]


def test_a_pod_has_the_time_to_drain(pod: Any, container: Any) -> None:
    program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]

    assert program == "sleep"
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + LONGEST_STOP_S
    # The routes are to know before the signal comes, not the probe: it takes longer.
    assert int(seconds) >= container["readinessProbe"]["periodSeconds"]


def test_ports_agree(manifests: dict[str, Any], container: Any) -> None:
    assert container["ports"] == [{"name": "http", "containerPort": PORT}]
    assert manifests["Service"]["spec"]["ports"] == [{"name": "http", "port": PORT, "targetPort": "http"}]


def test_labels_select_the_pods(manifests: dict[str, Any]) -> None:
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]

    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["maxUnavailable"] < manifests["Deployment"]["spec"]["replicas"]


def test_the_server_starts_with_keys(container: Any, tmp_path: Path) -> None:
    assert container["args"] == command("CMD")
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    found = settings_of(environment() | environ, tmp_path)

    assert found.server.api_keys
    assert not found.choice.supervise  # a restart inside would look like a hang to the probe
    assert found.server.port == PORT
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(Path(environ["PHOTONLITE_API_KEY_FILE"]).parent) in mounted


def test_the_file_of_keys_is_accepted(pod: Any) -> None:
    [keys] = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]

    assert keys["defaultMode"] & 0o022 == 0  # others must not write to it, or it is refused


def test_the_user_is_the_images_and_cannot_become_another(pod: Any, container: Any) -> None:
    user, group = map(int, one("USER").split(":"))

    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (user, group)
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_what_is_written_has_a_volume(pod: Any, container: Any) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}

    assert set(mounts) == {environment()["HOME"], "/tmp"}
    assert {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume} == set(mounts.values())


def test_the_patch_gives_the_same_container_a_gpu(container: Any, tmp_path: Path) -> None:
    [patch] = documents("kubernetes-gpu.yaml")
    [patched] = patch["spec"]["template"]["spec"]["containers"]

    assert patched["name"] == container["name"]
    assert patched["image"] == "photonlite:cuda"
    assert patched["resources"]["limits"]["nvidia.com/gpu"] == "1"
    environ = {entry["name"]: entry["value"] for entry in (*container["env"], *patched["env"])}
    assert settings_of(environment() | environ, tmp_path).choice.device == "cuda"
