"""Launches of images: which crops are encoded next, and where on the card. No torch.

Where images are encoded beside the other steps (`Limits.encodes_beside`), a launch of them holds as many crops as it
may: only the requests about them wait for it. Where the card is divided (`Limits.parts`) such a launch runs in the
encoder's part while enough decodes (`scheduler.parts`), and the prompts about its images run behind it, up to their
last positions: decode steps compute those, and wait for no prompt. Else images take turns there as well, and real-time
ones always do. An image is encoded to its end where it began: features are memory of one stream.
"""

import math
from collections.abc import Callable
from statistics import fmean

from photonlite.batch import CropGroup, EncodeJob, ScheduledBatch
from photonlite.request import IMAGE
from photonlite.scheduler.limits import LaunchModel, Limits, PauseBudget
from photonlite.scheduler.parts import parts_pay
from photonlite.scheduler.queues import EncoderQueue, WaitingQueue
from photonlite.scheduler.running import RunningSet
from photonlite.sequence import Sequence

_CUT_AHEAD = 16
"""Waiting requests whose images are cut into crops in advance."""


class ImageLaunches:
    """Plans launches of images; `end` ends a waiting sequence whose image cannot be encoded."""

    def __init__(
        self,
        limits: Limits,
        encoder: EncoderQueue,
        running: RunningSet,
        end: Callable[[WaitingQueue, Sequence, BaseException], None],
    ) -> None:
        self.crops = LaunchModel(limits.max_crops)
        self.divided = False  # bulk images and prompts about them have a part of the card, where it has parts
        self.reserved = False  # they keep to it, whatever decodes
        self.limits = limits
        self._encoder = encoder
        self._running = running
        self._end = end
        self._enough_crops = max(1, limits.max_crops // 2)  # a larger launch makes them no cheaper

    @property
    def takes_turns(self) -> bool:
        """Whether images may be encoded in pauses."""
        return not self.limits.encodes_beside or self.limits.parts is not None

    def begin(self, queue: WaitingQueue) -> None:
        """Begin to encode the next images of a queue, or have them cut; end sequences whose images cannot be."""
        if queue.wants_images:
            for sequence, error in self._encoder.begin(queue, max(_CUT_AHEAD, self.limits.max_jobs)):
                self._end(queue, sequence, error)

    def plan(self, queue: WaitingQueue, budget: PauseBudget, *, beside: bool) -> ScheduledBatch | None:
        """Plan the next launch of a queue's images within a budget, beside the other steps or in a pause."""
        if not queue.wants_images:
            return None
        if not self.limits.encodes_beside:
            self.begin(queue)
        crops = self.crops.most
        if budget.left_s < math.inf:
            if queue.batches and not budget.fresh and self.crops.cost(self._enough_crops) > budget.left_s:
                return None  # a small launch now makes another one necessary
            crops = min(crops, self.crops.within(budget.left_s))
        groups = self._next_groups(queue, crops, beside=beside)
        for group in groups:
            group.job.launched += group.count
            group.job.beside = beside
        if not groups:
            return None
        return ScheduledBatch("encode", groups=groups, beside=beside, in_part=beside and self.limits.parts is not None)

    def has_time(self, queue: WaitingQueue, pause: PauseBudget, prompts: LaunchModel) -> bool:
        """Whether a pause has time for more crops and, after them, for the prompts that could run before.

        Prompts are then held back to batch them. The first launch of a pause is exempt, which prevents starvation.
        """
        if pause.fresh:
            return False
        encoded = [job.leader for job in self._encoder.jobs_of(queue) if job.encoded]
        positions = sum(leader.num_tokens for leader in set(encoded) if not leader.finalized)
        crops = sum(group.count for group in self._next_groups(queue, self.crops.most, beside=False))
        return crops > 0 and self.crops.cost(crops) + prompts.cost(positions) <= pause.left_s

    def divide(self, queue: WaitingQueue, decode_s: float) -> None:
        """Decide whether the next images of a queue, if there are any, have a part of the card."""
        groups = self._encoder.next_groups(queue, self.crops.most, self._enough_crops)
        if groups:
            self.divided = self._parts_pay(queue, sum(group.count for group in groups), decode_s)
        self.reserved = False

    def reserve(self, *, reserved: bool) -> None:
        """Keep bulk images and the prompts about them to the encoder's part, or else have all images take turns."""
        self.divided = self.reserved = reserved

    def takes_prompt(self, sequence: Sequence) -> bool:
        """Whether a prompt runs behind its images, in the encoder's part: if others decode, for which it is no pause.

        A decode step computes its last position, which must be that of a word. Its images were encoded in that part.
        """
        if not self.divided or sequence.realtime or not sequence.samples or sequence.adapter is not None:
            return False
        jobs = [self._encoder.jobs[span.key] for span in sequence.images if span.key in self._encoder.jobs]
        if not jobs or any(job.is_stored or not job.beside for job in jobs):
            return False
        if not self.reserved and all(one.beside for one in self._running):
            return False
        last, word = sequence.num_tokens - 1, (*sequence.prompt[-1:], *sequence.tokens[-1:])[-1]
        ends = max(sequence.block, *(span.end for span in sequence.images))
        return word is not IMAGE and not word.values and ends <= last

    def _next_groups(self, queue: WaitingQueue, room: int, *, beside: bool) -> tuple[CropGroup, ...]:
        begins = self._begins_beside(queue) == beside

        def takes(job: EncodeJob) -> bool:
            return job.beside == beside if job.launched else begins

        return self._encoder.next_groups(queue, room, self._enough_crops, takes)

    def _begins_beside(self, queue: WaitingQueue) -> bool:
        """Whether images of a queue that are begun now run beside the other steps."""
        if self.limits.parts is None:
            return self.limits.encodes_beside
        return self.divided and not queue.realtime

    def _parts_pay(self, queue: WaitingQueue, crops: int, decode_s: float) -> bool:
        """Whether a launch of images should have a part of the card, by what decodes, for how long, and what waits."""
        parts, decoding = self.limits.parts, self._running.decoding()
        if parts is None or not decoding:
            return False
        left = fmean(map(self._running.router.tokens_to_come, decoding))
        rows, limits = len(decoding), self.limits
        # Images under way come one after the other: they are not waited for.
        later = min(len(queue) - limits.max_jobs, limits.max_batch - rows)
        return parts_pay(self.crops.cost(crops), left * decode_s, rows, max(0, later), parts)
