"""Settings of the service: sources, precedence, and errors that name them."""

from pathlib import Path
from typing import Any

import pytest

from photonlite.config import EngineConfig
from photonlite.errors import SettingsError
from photonlite.ray.settings import RaySettings, ServiceSettings, read_service_settings
from photonlite.server.config import ServerConfig


def read(given: dict[str, Any] | None = None, **environ: str) -> ServiceSettings:
    return read_service_settings(given or {}, {f"PHOTONLITE_{name}": text for name, text in environ.items()})


def test_without_settings_there_is_one_replica_of_the_default_server() -> None:
    made = read()

    assert made.ray == RaySettings()
    assert (made.ray.replicas, made.ray.most) == (1, 1)
    assert (made.serve.server, made.serve.engine) == (ServerConfig(), EngineConfig())


def test_given_values_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "service.toml"
    file.write_text("replicas = 2\nmax_open = 10\nmodel = 'from/file'\n[engine]\nmax_batch = 3\nmax_crops = 4\n")
    given = {"replicas": 4, "engine": {"max_batch": 5}, "images": {"max_pixels": 600}}

    made = read(given, CONFIG=str(file), REPLICAS="3", MAX_OPEN="11", MAX_REPLICAS="8")

    assert (made.ray.replicas, made.ray.max_replicas, made.ray.most) == (4, 8, 8)
    assert (made.serve.server.max_open, made.serve.choice.model) == (11, "from/file")
    assert (made.serve.engine.max_batch, made.serve.engine.max_crops) == (5, 4)
    assert made.serve.images.max_pixels == 600


def test_text_is_read_as_on_a_command_line() -> None:
    given = {"replicas": "4", "cpus": "0.5", "gpus": "none", "expose": "true", "url_hosts": "a.example,b.example"}

    made = read(given | {"model": "some/model", "engine": {"fused": "off"}})

    assert (made.ray.replicas, made.ray.cpus, made.ray.gpus) == (4, 0.5, None)
    assert (made.serve.server.expose, made.serve.server.url_hosts) == (True, ("a.example", "b.example"))
    assert (made.serve.choice.model, made.serve.engine.fused) == ("some/model", False)


def test_an_exposed_service_answers_beyond_its_machine() -> None:
    assert read({}).serve.server.is_local
    assert not read({"expose": True}).serve.server.is_local


def test_keys_come_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a-key-of-16-characters weight=2\n")
    file.chmod(0o600)

    assert read({"api_key_file": str(file)}).serve.server.api_keys == ("a-key-of-16-characters",)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"replica": 2}, "'replica' in the settings of photonlite.ray is not a setting: did you mean 'replicas'"),
        ({"engine": {"max_batches": 2}}, r"\[engine\] of the settings of photonlite.ray is not a setting"),
        ({"engine": {"max_batches": "2"}}, r"\[engine\] of the settings of photonlite.ray is not a setting"),
        ({"engine": 3}, "'engine' in the settings"),
        ({"replicas": 0}, "'replicas' in the settings of photonlite.ray is 0: give a whole number of at least 1"),
        ({"replicas": "many"}, "'replicas' in the settings of photonlite.ray is 'many': give a whole number"),
        ({"gpus": 2}, "from 0 to 1"),
        ({"replicas": 3, "max_replicas": 2}, "'max_replicas' is 2: .* at least 'replicas', which is 3"),
        ({"host": "0.0.0.0"}, "there are no API keys"),
    ],
)
def test_what_is_wrong_is_named_with_its_source(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        read(given)


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(SettingsError, match="PHOTONLITE_REPLICA "):
        read(REPLICA="2")
