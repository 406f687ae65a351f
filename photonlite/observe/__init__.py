"""Observability of the engine: metrics, a trace of every phase, and a drawing of it."""

from photonlite.observe.metrics import EngineMetrics, Histogram
from photonlite.observe.timeline import Recording, draw_timeline
from photonlite.observe.trace import Span, Tracer, busy_share, idle_per_period, step_starts

__all__ = [
    "EngineMetrics",
    "Histogram",
    "Recording",
    "Span",
    "Tracer",
    "busy_share",
    "draw_timeline",
    "idle_per_period",
    "step_starts",
]
