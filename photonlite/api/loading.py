"""`load`: from a folder, a file, a Hub id or the shipped checkpoint to a model that answers."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from photonlite.api.fit import choose_precisions
from photonlite.api.model import VisionModel
from photonlite.api.tasks import Task
from photonlite.config import EngineConfig, EngineSettings, ImageLimits, VisionWeights, Weights
from photonlite.device.cpu import in_passing
from photonlite.device.names import resolve_device, resolve_dtype
from photonlite.errors import NumericalError, SettingsError
from photonlite.models.checkpoint import LoadedModel, load_files, refuse_ranks
from photonlite.models.loading import ModelFiles, resolve
from photonlite.models.precisions import Precisions, check_precisions
from photonlite.runner.ranks.leader import load_team
from photonlite.settings import settings_of, unknown_name
from photonlite.skills import selftest


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    max_pixels: int | None = None,
    max_side: int | None = None,
    max_bytes: int | None = None,
    isolate_images: bool = False,
    allow_urls: bool = False,
    thumbnails: bool | None = None,
    sampling: Literal["greedy", "checkpoint"] = "greedy",
    weights: Weights = "auto",
    vision_weights: VisionWeights = "auto",
    store: str | os.PathLike[str] | None = None,
    engine: EngineConfig | EngineSettings | None = None,
    check: bool = False,
) -> VisionModel:
    """Load a model.

    Until it is closed, threads of this process take turns of 0.05 ms (`sys.setswitchinterval`): the engine is one of
    them, and would wait for busy ones.

    Args:
        model: A folder, a .safetensors file, a Hub id "owner/name", or None for the shipped checkpoint.
        device: "auto" (CUDA where there is one, else the CPU), "cpu", "cuda", "cuda:1".
        dtype: "auto" (bfloat16 on recent CUDA devices, else float32), "float32", "bfloat16", "float16".
        revision: Branch, tag or commit of a Hub repository.
        max_pixels: Largest image accepted, width times height; 64 million, or PHOTONLITE_MAX_PIXELS, by default.
        max_side: Its longest side in pixels; 65,535, or PHOTONLITE_MAX_SIDE, by default.
        max_bytes: Largest image file accepted; 256 MiB, or PHOTONLITE_MAX_BYTES, by default.
        isolate_images: Whether image files (paths, bytes, file objects) are decoded in processes that are killed when
            one takes too much CPU time or memory: for images from strangers, of which a few kilobytes can keep a core
            busy for minutes. Linux only. Images and arrays are taken as they are.
        allow_urls: Whether an image may be an https URL, which is fetched within 20 seconds and `max_bytes`, never from
            an address of a private network, redirects included. For URLs of strangers set `isolate_images` as well.
        thumbnails: Whether results of `detect`, `point` and `segment` keep a JPEG of their image, at most 64 KiB, to
            draw themselves in notebooks; by default only in a notebook's kernel.
        sampling: What an answer in words begins with, which settings of a call replace by name: "greedy", so that
            answers are repeatable; or "checkpoint", the values of generation_config.json (`model.sampling_defaults`).
            Places, outlines and answers with a schema, choices or a pattern are greedy either way.
        store: A folder such as "~/.cache/photonlite/store": what the image encoder makes is kept there as well, so that
            another question about the same image is quick after a restart too. None for the engine setting `store`.
        weights: Of the text decoder: "auto" as the files have them; rounded to "int8", "fp8" or "int4" while they are
            read; or "fit", the best of these that fits the memory. Answers change a little.
        vision_weights: The same of the image encoder: "auto", "int8" or "fp8".
        engine: Settings of :class:`photonlite.EngineConfig`, by name or as a whole. Names that are left out come from
            the environment.
        check: Whether a tiny question is asked through every skill and every head before the model is returned: it
            takes about as long as five first questions.

    Raises:
        ModelNotFoundError: There is no such folder, file or Hub repository.
        ConfigError: Its config.json is missing, or that or another configuration file is unusable.
        CheckpointError: Its weights or tokenizer are missing or unusable.
        SettingsError: An unknown device, type, way of sampling or precision, a limit that is no number above 0, or
            a setting or precision that is out of range or not supported by the device, the files or another setting.
        CapacityError: The memory does not hold even one longest request, or weights in any precision that fits.
        EngineError: With the engine setting `tensor_parallel`, a rank cannot start.
        NumericalError: With `check`, the checkpoint computes something that is no finite number.
    """
    given: dict[str, Any] = {"max_pixels": max_pixels, "max_side": max_side, "max_bytes": max_bytes}
    limits = dataclasses.replace(ImageLimits.from_env(), **{k: v for k, v in given.items() if v is not None})
    _check_choices(allow_urls, sampling)
    check_precisions(weights, vision_weights)
    config = _engine_config(engine, store)
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where)

    def start() -> VisionModel:
        files = resolve(model, revision=revision)
        precisions = choose_precisions(files, weights, vision_weights, where, kind, config)
        loaded = _load_weights(files, precisions, where, kind, config)
        images = {"isolate_images": isolate_images, "allow_urls": allow_urls}
        started = VisionModel(loaded, where, kind, limits, config, **images, thumbnails=thumbnails, sampling=sampling)
        try:
            if check:
                _self_test(started)
        except BaseException:
            started.close(drain=False)
            raise
        return started

    return in_passing(start)


def _check_choices(allow_urls: object, sampling: object) -> None:
    if not isinstance(allow_urls, bool):
        raise SettingsError(f"allow_urls is {allow_urls!r:.60}: give True or False")
    if sampling not in ("greedy", "checkpoint"):
        raise SettingsError(f"sampling is {sampling!r:.60}: it must be 'greedy' or 'checkpoint'")


def _folder_name(store: object) -> str:
    if not isinstance(store, str | os.PathLike) or not isinstance(name := os.fspath(store), str) or not name:
        raise SettingsError(f"store is {store!r:.60}: give the path of a folder, or leave it out")
    return name


def _load_weights(
    files: ModelFiles, precisions: Precisions, where: torch.device, dtype: torch.dtype, config: EngineConfig
) -> LoadedModel:
    options: dict[str, Any] = {"device": where, "dtype": dtype, "max_context": config.context}
    if config.tensor_parallel == 1:
        return load_files(files, precisions=precisions, **options)
    refuse_ranks(files.stored or precisions, config.tensor_parallel)
    return load_team(files, config.tensor_parallel, **options)


def _engine_config(given: EngineConfig | EngineSettings | None, store: object) -> EngineConfig:
    folder: dict[str, Any] = {} if store is None else {"store": _folder_name(store)}
    if isinstance(given, EngineConfig):
        return dataclasses.replace(given, **folder)
    known = settings_of(EngineConfig)
    if given is not None and not isinstance(given, Mapping):
        raise SettingsError(f"engine is of type {type(given).__name__}: give a dict such as {{'max_batch': 16}}")
    for name in given or {}:
        if name not in known:
            raise unknown_name(f"engine setting {name!r:.60}", str(name), known)
    settings: dict[str, Any] = {**(given or {}), **folder}
    try:
        return dataclasses.replace(EngineConfig.from_env(), **settings)
    except TypeError as cause:
        raise SettingsError(f"an engine setting has a value of the wrong type: {cause}") from cause


def _self_test(model: VisionModel) -> None:
    """Ask a tiny question through every skill and every head; raises `NumericalError` for damaged weights."""
    image = np.indices((24, 32, 3)).sum(axis=0).astype(np.uint8)
    asked = {}
    for skill, request in selftest.build(model._prompts).items():
        salted = dataclasses.replace(request, cache_salt="photonlite self-test")  # no request may reuse it
        asked[skill] = model._session.launch(Task(salted, (image,), finish=None))
    for skill, handle in asked.items():
        try:
            handle.result()
        except NumericalError as cause:
            raise NumericalError(f"the self-test of {skill!r} has failed: {cause}") from cause
