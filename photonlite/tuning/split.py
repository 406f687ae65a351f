"""How the engine divides a card between encoding and decoding: by a tuning file, by a setting, or by default."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from photonlite.config import EngineConfig
from photonlite.scheduler.parts import DEFAULT_SHARES, WEIGHTS, PartSpeeds, PartTable, table_at
from photonlite.tuning.schedule import Tuning, load_tuning


class Split(NamedTuple):
    """A division of a card.

    Attributes:
        encode_sms: The encoder's, about; 0 for none: images take turns with other steps.
        parts: Speeds in the division; None without one.
        source: Where the division is from, for logs and metrics.
    """

    encode_sms: int
    parts: PartTable | None
    source: str


def read_split(path: Path, made_for: Mapping[str, str]) -> Split:
    """Return what the schedule of a tuning file does; raises as `load_tuning`."""
    tuning = load_tuning(path, made_for)
    source, decode_sms = f"the schedule of {tuning.use} streams in {path}", tuning.decode_sms
    if decode_sms is None:
        return Split(0, None, source)
    measured = {
        streams: {pair.sms / tuning.sms: PartSpeeds(min(1.0, pair.compute), min(1.0, pair.other)) for pair in one.pairs}
        for streams, one in tuning.streams.items()
        if one.pairs
    }
    parts = table_at(decode_sms / tuning.sms, measured, _weights(tuning))
    return Split(tuning.sms - decode_sms, parts, source)


def split_by_settings(device: torch.device, config: EngineConfig) -> Split | None:
    """Return the division that `encode_sms` asks for, or the default one of the card; None for none."""
    if config.encoding != "beside" or not config.cuda_graphs:
        return None
    on_card = device.type == "cuda"
    total = torch.cuda.get_device_properties(device).multi_processor_count if on_card else 0
    if config.encode_sms is not None:
        sms, source = config.encode_sms, "the setting encode_sms"
        total = total or 2 * sms
    else:
        capability = torch.cuda.get_device_capability(device) if on_card else (0, 0)
        sms = round(DEFAULT_SHARES.get(capability, 0) * total)
        source = "the default of compute capability {}.{}".format(*capability)
    return Split(sms, table_at(1 - sms / total), source) if sms else None


def _weights(tuning: Tuning) -> float:
    """Return `PartTable.weights` by the times of decode steps: where a line through them is 0, or the default."""
    if len(tuning.streams) > 1:
        times = [one.step_s for one in tuning.streams.values()]
        slope, start = statistics.linear_regression(list(tuning.streams), times)
        if slope > 0 and start > 0:
            return start / slope
    return WEIGHTS
