"""Settings of the service: those of `photonlite serve`, and how many replicas there are and what each of them takes."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from photonlite.cli.settings import TABLES, Choice, ServeSettings, check_names, gather, serve_settings
from photonlite.config import EngineConfig, ImageLimits
from photonlite.errors import SettingsError
from photonlite.server.config import ServerConfig
from photonlite.settings import Given, build, check_settings, from_table, setting, settings_of

_WHERE: Final = "the settings of photonlite.ray"


@dataclass(frozen=True, slots=True)
class RaySettings:
    """Replicas, and which of them answers.

    Attributes:
        replicas: Replicas at start, and the least that autoscaling keeps.
        max_replicas: Replicas at most; None for as many as `replicas`, without autoscaling.
        target_open: Open requests of a replica that autoscaling aims at; None for half of what it decodes together.
        gpus: Cards of a replica, below 1 for a share of one; None for 1 where there are cards, else 0.
        cpus: Cores that a replica reserves; on the CPU, also those that it computes with.
        ingresses: Processes that take requests in and choose the replica.
        load_factor: A replica passes requests on while it has more open than so many times the mean.
        least_load: Open requests up to which a replica passes none on, whatever the mean; None for as many as it
            decodes together: up to then no request waits in its queue.

    Raises:
        SettingsError: A value is out of its range, or `max_replicas` is below `replicas`.
    """

    replicas: int = setting(1, least=1)
    max_replicas: int | None = setting(None, least=1)
    target_open: float | None = setting(None, above=0)
    gpus: float | None = setting(None, least=0, most=1)
    cpus: float = setting(1.0, least=0)
    ingresses: int = setting(1, least=1)
    load_factor: float = setting(1.5, least=1)
    least_load: int | None = setting(None, least=1)

    def __post_init__(self) -> None:
        check_settings(self, "Ray setting")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            reason = f"it must be None or at least 'replicas', which is {self.replicas}"
            raise SettingsError(f"Ray setting 'max_replicas' is {self.max_replicas}: {reason}")

    @property
    def most(self) -> int:
        return self.max_replicas or self.replicas


class ServiceSettings(NamedTuple):
    serve: ServeSettings  # of each replica
    ray: RaySettings


def read_service_settings(given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> ServiceSettings:
    """Read settings by name, as a TOML file of `photonlite serve` has them, those of `RaySettings` among them.

    Text is read as the value of an environment variable is. What is not given comes from environment variables, and
    below them from the file that `PHOTONLITE_CONFIG` names. Raises `SettingsError` and `InputError`.
    """
    known: tuple[type, ...] = (Choice, ServerConfig, EngineConfig, ImageLimits, RaySettings)
    check_names(given, f"in {_WHERE}", known)
    values = {cls: _given(cls, given) for cls in known}
    found = gather(values, None, environ, RaySettings)
    serve = serve_settings(found)
    if serve.server.expose:  # the proxies listen, at addresses that are not known here
        serve = serve._replace(server=dataclasses.replace(serve.server, host="0.0.0.0"))
    return ServiceSettings(serve, build(RaySettings, found[RaySettings]))


def _given(cls: type, given: Mapping[str, Any]) -> dict[str, Given]:
    table, known = TABLES.get(cls), settings_of(cls)
    values = {name: given[name] for name in given if name in known} if table is None else dict(given.get(table, {}))
    where = _WHERE if table is None else f"[{table}] of {_WHERE}"
    for name, value in values.items():
        if isinstance(value, str) and name in known:
            values[name] = known[name].read(value, f"{name!r} in {where}")
    return from_table(cls, values, where)
