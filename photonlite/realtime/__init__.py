"""Real-time answers about a stream of frames: the newest frame wins, deadlines hold, everything is counted."""

from photonlite.realtime.frames import FrameFailure, FrameResult
from photonlite.realtime.latest import Results
from photonlite.realtime.loop import RealtimeLoop
from photonlite.realtime.state import LoopStats, Percentiles

__all__ = ["FrameFailure", "FrameResult", "LoopStats", "Percentiles", "RealtimeLoop", "Results"]
