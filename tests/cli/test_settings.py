"""Sources of the settings of `photonlite serve` and their precedence."""

from pathlib import Path
from typing import Any

import pytest

from photonlite.cli.parser import parse
from photonlite.cli.settings import ServeSettings, read_settings
from photonlite.config import EngineConfig, ImageLimits
from photonlite.errors import InputError, SettingsError
from photonlite.server.config import ServerConfig
from photonlite.settings import settings_of

FILE = """\
model = "from/file"
max_open = 1
max_images = 2
url_hosts = ["a.example"]
deadline_s = 5

[engine]
max_batch = 3
max_crops = 4

[images]
max_pixels = 500
"""


def settings(*arguments: str, **environ: str) -> ServeSettings:
    return read_settings(parse(["serve", *arguments]), {f"PHOTONLITE_{name}": text for name, text in environ.items()})


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "photonlite.toml"
    path.write_text(FILE)
    return str(path)


def test_without_settings_the_defaults_apply() -> None:
    made = settings()

    assert (made.server, made.engine, made.images) == (ServerConfig(), EngineConfig(), ImageLimits())
    assert (made.choice.model, made.choice.device, made.choice.dtype) == (None, "auto", "auto")


def test_a_byte_order_mark_begins_no_setting(tmp_path: Path) -> None:
    path = tmp_path / "photonlite.toml"
    path.write_text(FILE, encoding="utf-8-sig")

    assert settings("--config", str(path)).server.max_open == 1


def test_flags_override_the_environment_which_overrides_the_file(file: str) -> None:
    flags = ("--max-open", "30", "--engine", "max_batch=31")
    environ = {"MAX_OPEN": "20", "MAX_IMAGES": "21", "MAX_BATCH": "22", "MAX_CROPS": "23"}

    alone = settings("--config", file)
    over = settings("--config", file, *flags, **environ)

    assert (alone.server.max_open, alone.server.max_images, alone.server.url_hosts) == (1, 2, ("a.example",))
    assert (alone.server.deadline_s, alone.choice.model, alone.images.max_pixels) == (5.0, "from/file", 500)
    assert (alone.engine.max_batch, alone.engine.max_crops) == (3, 4)
    assert (over.server.max_open, over.server.max_images, over.server.url_hosts) == (30, 21, ("a.example",))
    assert (over.engine.max_batch, over.engine.max_crops) == (31, 23)


def test_router_batching_and_encoding_have_flags_of_their_own() -> None:
    assert settings("--router", "greedy").engine.router == "greedy"
    assert settings("--router", "static", "--engine", "router_budget=1.2").engine.router_budget == 1.2
    assert settings("--batching", "mixed", "--engine", "mixed_tokens=99").engine.batching == "mixed"
    assert settings("--encoding", "beside", "--encode-sms", "68").engine.encode_sms == 68
    assert settings("--encoding", "beside", "--realtime-part").engine.realtime_part
    assert settings("--encoding", "beside", "--tuning", "h200.json").engine.tuning == "h200.json"
    with pytest.raises(SettingsError, match="--router is 'eager'"):
        settings("--router", "eager")


def test_ranks_have_a_flag_of_their_own() -> None:
    assert settings("--tensor-parallel", "2").engine.tensor_parallel == 2
    assert settings(TENSOR_PARALLEL="4").engine.tensor_parallel == 4
    with pytest.raises(SettingsError, match=r"'tensor_parallel' is 0: it must be .*set by --tensor-parallel"):
        settings("--tensor-parallel", "0")


def test_the_environment_names_the_file_and_the_model(file: str) -> None:
    assert settings(CONFIG=file).server.max_open == 1
    assert settings(CONFIG=file, MODEL="from/environment").choice.model == "from/environment"
    assert settings("--model", "from/flag", MODEL="from/environment", DEVICE="cpu").choice.model == "from/flag"
    assert settings(DEVICE="cpu").choice.device == "cpu"


def given(setting: Any) -> str:
    """A value for a flag that is not the default."""
    if setting.choices:
        return next(one for one in setting.choices if one != setting.default)
    if setting.many:
        return "7" if setting.kind is int else "https://seven.example" if "origin" in setting.name else "seven.example"
    return {
        "host": "127.0.0.7",
        "gpu_memory_fraction": "0.7",
        "router_budget": "0.7",
        "depth": "1",
        "page_size": "8",
    }.get(setting.name, "7")


@pytest.mark.parametrize("cls", [ServerConfig, ImageLimits])
def test_every_setting_has_a_flag_and_a_variable(cls: type) -> None:
    for name, setting in settings_of(cls).items():
        flag = [setting.flag] if setting.kind is bool else [setting.flag, given(setting)]
        text = "true" if setting.kind is bool else given(setting)
        for made in (settings(*flag), settings(**{name.upper(): text})):
            part = made.server if cls is ServerConfig else made.images
            assert getattr(part, name) != setting.default, name


def test_every_setting_of_the_engine_has_an_assignment_and_a_variable() -> None:
    for name, setting in settings_of(EngineConfig).items():
        text = given(setting) if setting.kind is not bool else str(not setting.default)
        more = {"fused": "true", "batching": "mixed"}  # some others need them
        more.pop(name, None)
        more |= {"encoding": "beside"} if name in ("encode_sms", "realtime_part", "tuning") else {}
        for made in (
            settings(
                "--engine", f"{name}={text}", *(part for one in more.items() for part in ("--engine", "=".join(one)))
            ),
            settings(**{name.upper(): text}, **{other.upper(): value for other, value in more.items()}),
        ):
            assert getattr(made.engine, name) != setting.default, name


@pytest.mark.parametrize(
    ("arguments", "environ", "complaint"),
    [
        (("--engine", "max_bach=3"), {}, "--engine 'max_bach' is not a setting: did you mean 'max_batch'"),
        (("--engine", "max_batch=0"), {}, r"'max_batch' is 0: .* \(it was set by --engine max_batch\)"),
        (("--max-open", "0"), {}, r"'max_open' is 0: .* \(it was set by --max-open\)"),
        (("--max-pixels", "0"), {}, r"'max_pixels' is 0: .* \(it was set by --max-pixels\)"),
        ((), {"MAX_OPNE": "3"}, "environment variable PHOTONLITE_MAX_OPNE is not a setting: did you mean 'max_open'"),
        ((), {"MAX_OPEN": "many"}, "the environment variable PHOTONLITE_MAX_OPEN is 'many': give a whole number"),
        ((), {"API_KEYS": "0123456789abcdef"}, "PHOTONLITE_API_KEYS is not a setting: did you mean 'api_key"),
    ],
)
def test_bad_values_are_refused_with_their_source(
    arguments: tuple[str, ...], environ: dict[str, str], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        settings(*arguments, **environ)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max_opne = 1", "'max_opne' in the file .* is not a setting: did you mean 'max_open'"),
        ("[engine]\nmax_bach = 1", r"'max_bach' in \[engine\] of the file .*: did you mean 'max_batch'"),
        ("engine = 1", "'engine' in the file .* is not a setting"),
        ("[images]\nmax_pixels = '1'", r"'max_pixels' in \[images\] of the file .* is '1': give a whole number"),
        ("api_keys = ['0123456789abcdef']", "'api_keys' in the file .* is not a setting"),
        ("max_open = 0", "'max_open' in the file .* is 0: give a whole number of at least 1"),
    ],
)
def test_a_file_with_bad_content_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)

    with pytest.raises(SettingsError, match=complaint):
        settings("--config", str(path))


@pytest.mark.parametrize("content", [None, b"max_open = ", b"\xff\xfe"])
def test_an_unreadable_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "wrong.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InputError, match=r"wrong\.toml"):
        settings("--config", str(path))


def test_variables_of_kubernetes_and_clients_are_ignored() -> None:
    made = settings(
        PORT="tcp://10.0.0.7:80",
        PORT_80_TCP="tcp://10.0.0.7:80",
        PORT_80_TCP_ADDR="10.0.0.7",
        SERVICE_HOST="10.0.0.7",
        SERVICE_PORT="80",
        API_KEY="of-a-client",
    )

    assert made.server == ServerConfig()
