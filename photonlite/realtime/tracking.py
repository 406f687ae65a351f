"""Ids over the answered frames of a real-time loop."""

import dataclasses

from photonlite.realtime.frames import FrameResult, Question
from photonlite.results.spatial import SpatialBase
from photonlite.results.tracking import Tracker


class FrameTracker:
    """Gives results ids, in the order of their frames; another question starts anew."""

    def __init__(self) -> None:
        self._asked: object = None
        self._tracker: Tracker | None = None

    def identify(self, outcome: FrameResult, question: Question) -> FrameResult:
        if not (question.track and isinstance(outcome.result, SpatialBase)):
            return outcome
        asked = question.task, question.arguments
        if self._tracker is None or self._asked != asked:
            self._tracker, self._asked = Tracker(), asked
        return dataclasses.replace(outcome, result=self._tracker.update(outcome.result, outcome.arrived))
