"""Which tuning file a model's engine uses."""

import logging
import os
from collections.abc import Mapping

import torch

import photonlite
from photonlite.config import EngineConfig
from photonlite.errors import SettingsError, TuningError
from photonlite.models.checkpoint import LoadedModel
from photonlite.settings import user_cache, with_home
from photonlite.tuning.made_for import made_for
from photonlite.tuning.schedule import find_tuning
from photonlite.tuning.split import Split, read_split

_logger = logging.getLogger("photonlite")


def tuned_split(
    loaded: LoadedModel,
    device: torch.device,
    dtype: torch.dtype,
    config: EngineConfig,
    environ: Mapping[str, str] = os.environ,
) -> Split | None:
    """Return the division by the tuning file that the settings name, else by one in the user's cache; None for none.

    Raises a TuningError where the named file cannot be used; another one is then left out with a warning.
    """
    beside = config.encoding == "beside" and config.cuda_graphs and config.encode_sms is None
    if not beside or (config.tuning is None and device.type != "cuda"):
        return None
    wanted = made_for(loaded.model, loaded.precisions, device, dtype, photonlite.__version__)
    if config.tuning is not None:
        return read_split(with_home(config.tuning), wanted)
    try:
        path = find_tuning(user_cache(environ) / "tuning", wanted)
        return None if path is None else read_split(path, wanted)
    except (TuningError, SettingsError, OSError) as error:  # SettingsError: there is no home folder
        _logger.warning("Falling back to the default tuning: %s", error)
        return None
