"""`photonlite serve`: the model behind HTTP."""

import argparse
import contextlib
import dataclasses
import faulthandler
import os
import socket
import sys
from functools import partial
from pathlib import Path

import photonlite
from photonlite.cli.run import import_extra
from photonlite.cli.settings import ServeSettings, read_settings
from photonlite.errors import InputError
from photonlite.processes.worker import module_command
from photonlite.server.config import ServerConfig, read_access
from photonlite.server.link import NO_RESTARTS, Link, notify_systemd
from photonlite.server.supervisor import SUPPORTED, Supervisor
from photonlite.server.watchdog import FROZEN_S, HANG_S, Watchdog

_MISSING = "the server needs the package {name!r}, which is not installed: pip install 'photonlite[serve]'"


def run_server(options: argparse.Namespace) -> int:
    """Serve until a signal; returns 0 after an orderly stop. A stuck thread exits with 1; see `end_process_in`."""
    link = Link.from_environment()
    settings = read_settings(options)
    if options.plan:
        with load_served(settings) as model:
            print(model.memory_plan())
        return 0
    if link is not None:
        if sys.stderr is not None:
            faulthandler.enable(os.dup(sys.stderr.fileno()))  # the supervisor aborts a process that hangs
        return _serve(settings, link.listener, link)
    # Before the model: a wrong address is reported at once.
    with import_extra("photonlite.server.transport.listening", _MISSING).listen(settings.server) as listener:
        if not (SUPPORTED and settings.choice.supervise):
            return _serve(settings, listener)
        command = module_command("photonlite.cli", *options.arguments)
        return Supervisor(command, listener, settings.server.max_restarts).run()


def _serve(settings: ServeSettings, listener: socket.socket, link: Link | None = None) -> int:
    """Load the model and serve it in this process."""
    choice, config = settings.choice, settings.server
    run = import_extra("photonlite.server.run", _MISSING)
    _say(f"loading {choice.model or 'the shipped checkpoint'} ...")
    # A card that is gone since the first start is an error: "auto" would take the CPU.
    model = load_served(settings, device=None if link is None else link.device)

    def reload() -> ServerConfig:
        return dataclasses.replace(config, **read_access(Path(choice.api_key_file or "")))

    def started(host: str, port: int) -> None:
        _say(greeting(config, model.name, host, port))
        notify_systemd("READY=1")
        if link is not None:
            link.ready(str(model.device))

    beat = partial(notify_systemd, "WATCHDOG=1") if link is None else link.beat
    hang_s = config.hang_s or HANG_S[model.device.type]
    return int(
        run.serve(
            model,
            config,
            listener=listener,
            image_limits=settings.images,
            restarts=NO_RESTARTS if link is None else link.restarts,
            on_start=started,
            reload=reload if choice.api_key_file else None,
            guard=run.end_process_in,
            watchdog=Watchdog(model, hang_s, beat, put_off=partial(run.end_process_in, hang_s + FROZEN_S)),
        )
    )


def load_served(settings: ServeSettings, *, device: str | None = None) -> "photonlite.VisionModel":
    """Load the model that settings describe, on their device or on another one."""
    choice = settings.choice
    adapters = [_named_path(adapter) for adapter in choice.adapters]
    model = photonlite.load(
        choice.model,
        device=device or choice.device,
        dtype=choice.dtype,
        weights=choice.weights,
        vision_weights=choice.vision_weights,
        revision=choice.revision,
        max_pixels=settings.images.max_pixels,
        max_side=settings.images.max_side,
        max_bytes=settings.images.max_bytes,
        thumbnails=False,
        sampling=choice.sampling,
        engine=settings.engine,
        check=choice.check,
    )
    try:
        for name, path in adapters:
            model.load_adapter(path, name=name)
    except BaseException:
        model.close(drain=False)
        raise
    return model


def _named_path(adapter: str) -> tuple[str, str]:
    name, equals, path = adapter.partition("=")
    if not equals:
        raise InputError(f"--adapter is {adapter!r}: give NAME=PATH, such as shelf=adapters/shelf")
    return name, path


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
    with contextlib.suppress(OSError):  # a full disk, or a closed pipe
        print(text, file=sys.stderr, flush=True)
