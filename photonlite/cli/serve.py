"""`photonlite serve`: the model behind HTTP."""

import argparse
import dataclasses
import sys
from pathlib import Path

import photonlite
from photonlite.cli.run import import_extra
from photonlite.cli.settings import ServeSettings, read_settings
from photonlite.server.config import ServerConfig, read_keys

_MISSING = "the server needs the package {name!r}, which is not installed: pip install 'photonlite[serve]'"


def run_server(options: argparse.Namespace) -> int:
    """Serve until a signal; returns 0 after an orderly stop. A stuck thread exits with 1; see `end_process_in`."""
    settings = read_settings(options)
    choice, config = settings.choice, settings.server
    # Before the model: a wrong address is reported at once.
    with import_extra("photonlite.server.transport.listening", _MISSING).listen(config) as listener:
        run = import_extra("photonlite.server.run", _MISSING)
        _say(f"loading {choice.model or 'the shipped checkpoint'} ...")
        model = load_served(settings)

        def reload() -> ServerConfig:
            weights = read_keys(Path(choice.api_key_file or ""))
            return dataclasses.replace(config, api_keys=tuple(weights), key_weights=weights)

        return int(
            run.serve(
                model,
                config,
                listener=listener,
                image_limits=settings.images,
                on_start=lambda host, port: _say(greeting(config, model.name, host, port)),
                reload=reload if choice.api_key_file else None,
                guard=run.end_process_in,
            )
        )


def load_served(settings: ServeSettings) -> "photonlite.VisionModel":
    choice = settings.choice
    return photonlite.load(
        choice.model,
        device=choice.device,
        dtype=choice.dtype,
        revision=choice.revision,
        max_pixels=settings.images.max_pixels,
        max_bytes=settings.images.max_bytes,
        thumbnails=False,
        engine=settings.engine,
        check=choice.check,
    )


def greeting(config: ServerConfig, name: str, host: str, port: int) -> str:
    # A browser cannot open a wildcard address.
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    address = f"http://{shown}:{port}"
    who = "this machine" if config.is_local else "every machine that can reach it"
    need = "with an API key" if config.api_keys else "without an API key"
    return f"""photonlite serves {name} at {address}
  playground   {address}/
  API          {address}/v1, described at {address}/openapi.json
  answers      {who}, {need}
  to stop      Ctrl+C: open requests are finished first, for {config.drain_s:g} s; again: at once"""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
