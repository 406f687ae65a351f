"""Where sequences are before they run: waiting queues, and the encoder that prepares their images.

```
WaitingQueue ──── image cached or encoded, pages there ────> RunningSet ──── end ────> zombie ──> released
    │      ^                                                     │
    │      └───────────────── pre-empted ────────────────────────┘
    └── image not cached ──> cut (on another thread) ──> EncoderQueue: job ── crop groups ──> encoded
                                                         └ led by one sequence, followed by others
```
"""

from collections.abc import Callable, Iterator
from operator import attrgetter

from sortedcontainers import SortedKeyList

from photonlite.batch import CropGroup, EncodeJob
from photonlite.cache.manager import CacheManager
from photonlite.image_inputs import ImageInput, ImageRef, StoredImage, StoredPages, read_crops
from photonlite.scheduler.adapters import AdapterSlots
from photonlite.scheduler.limits import REALTIME_JOBS, Limits
from photonlite.sequence import ImageSpan, Sequence

by_number: Callable[[Sequence], int] = attrgetter("number")


class WaitingQueue:
    """Sequences of one class that are not admitted, or pre-empted, oldest first.

    One that is not ready is blocked, so that walking the candidates costs no more than what it finds. Every operation
    takes time in the logarithm of the queue's length.
    """

    def __init__(self, max_jobs: int, *, realtime: bool = False) -> None:
        self.max_jobs = max_jobs  # images of the class that are encoded at a time
        self.realtime = realtime  # the class of requests
        self.batches = not realtime  # launches are held back to batch crops and prompts
        self.prefilled_last = False  # encoding comes first in the next pause
        self.lacks_pages = False  # or room beside prompts that have begun; in this plan
        self._ordered: SortedKeyList[Sequence, int] = SortedKeyList(key=by_number)
        self._candidates: SortedKeyList[Sequence, int] = SortedKeyList(key=by_number)  # not blocked
        self._by_image: dict[str, SortedKeyList[Sequence, int]] = {}

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._ordered)

    @property
    def wants_images(self) -> bool:
        return bool(self._by_image)

    def first(self, count: int) -> list[Sequence]:
        oldest: list[Sequence] = self._ordered[:count]
        return oldest

    def first_about(self, key: str) -> Sequence | None:
        return self._by_image[key][0] if key in self._by_image else None

    def add(self, sequence: Sequence) -> None:
        self._ordered.add(sequence)
        self._candidates.add(sequence)
        for key in {span.key for span in sequence.images}:
            if key not in self._by_image:
                self._by_image[key] = SortedKeyList(key=by_number)
            self._by_image[key].add(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._ordered.remove(sequence)
        self._candidates.discard(sequence)
        for key in {span.key for span in sequence.images}:
            self._by_image[key].remove(sequence)
            if not self._by_image[key]:
                del self._by_image[key]

    def block(self, sequence: Sequence) -> None:
        self._candidates.remove(sequence)

    def unblock(self, key: str) -> None:
        """Note that sequences about an image may be ready: it is encoded, or cached."""
        for sequence in self._by_image.get(key, ()):
            if sequence not in self._candidates:
                self._candidates.add(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Note that a sequence may be ready: its adapter is there, or a slot for it."""
        if sequence in self._ordered:
            self._candidates.discard(sequence)
            self._candidates.add(sequence)

    def candidates(self) -> Iterator[Sequence]:
        """Walk the sequences that are not blocked, oldest first; the caller may remove or block the one it has got."""
        last = -1
        while (found := next(self._candidates.irange_key(last, inclusive=(False, True)), None)) is not None:
            last = found.number
            yield found


class EncoderQueue:
    """Images that are being encoded, by key, in the order of their beginning; each belongs to its leader's class."""

    def __init__(self, cache: CacheManager, limits: Limits, adapters: AdapterSlots) -> None:
        self.jobs: dict[str, EncodeJob] = {}
        self._cache = cache
        self._adapters = adapters
        self._max_jobs = limits.max_jobs + REALTIME_JOBS
        self._max_image_bytes = limits.max_image_bytes
        self._staged_pages = limits.staged_pages
        self._begun = 0

    def jobs_of(self, queue: WaitingQueue) -> list[EncodeJob]:
        return [one for one in self.jobs.values() if one.leader.realtime == queue.realtime]

    def begin(self, queue: WaitingQueue, count: int) -> list[tuple[Sequence, BaseException]]:
        """Begin to encode the images of the first `count` sequences of a queue, or have them cut; returns failures.

        The first sequence may have more images than are encoded at a time: it runs only when it has all of them, and
        later ones may hold all places while they wait for more. One that waits for its adapter does not count: those
        that have theirs go before it. So may later ones that hold a slot, for which others wait.
        """
        unusable = []
        place = 0
        first = queue.first(count)
        held = [one for one in self._adapters.waiting_holders() if one.realtime == queue.realtime and one not in first]
        for sequence in (*first, *held):
            for span in self._missing(sequence):
                if self._joins(sequence, span.key):
                    continue
                crops, failure = _request_crops(span)
                if failure is not None:
                    unusable.append((sequence, failure))
                    break
                room = crops is not None and (self._has_room(queue) or place == 0)
                if crops is not None and room and self._adapters.hold(sequence):
                    pages = self._pages_with(crops)
                    self.jobs[span.key] = EncodeJob(self._begun, span.key, crops, sequence, pages=pages)
                    self._begun += 1
            place += not self._adapters.is_blocked(sequence)
        return unusable

    def next_groups(
        self, queue: WaitingQueue, room: int, enough: int, takes: Callable[[EncodeJob], bool] = lambda job: True
    ) -> tuple[CropGroup, ...]:
        """Choose the next crops of a queue's class, at most `room`, oldest image first, of those that a launch takes.

        From `enough` crops on a larger launch makes them no cheaper: the launch then ends where the next image would be
        split, so that an image does not wait for another's crops. One that is encoded as a whole goes alone where it
        exceeds the room.
        """
        groups: list[CropGroup] = []
        taken = copied = 0
        for job in self.jobs_of(queue):
            left = job.total - job.launched
            if left == 0 or not takes(job) or job.leader.finalized or not self._adapters.hold(job.leader):
                continue  # of one that has ended in this plan the next one finds an heir
            if taken >= room or ((taken >= enough or (taken and job.is_whole)) and taken + left > room):
                break
            if job.launched == 0:
                copied += job.image_bytes
                if groups and copied > self._max_image_bytes:
                    break  # no later image overtakes it
            count = left if job.is_whole else min(left, room - taken)
            groups.append(CropGroup(job, job.launched, count, job.leader.adapter_slot))
            taken += groups[-1].count
        return tuple(groups)

    def crops_missing(self, sequence: Sequence) -> int:
        """Return how many crops of a sequence's images must be encoded, of those that are cut. Images may raise."""
        found = [_read_crops(span.image) for span in self._missing(sequence)]
        return sum(crops.count for crops in found if crops is not None)

    def is_begun(self, sequence: Sequence) -> bool:
        """Whether a launch has encoded crops of a sequence's images."""
        jobs = [self.jobs[span.key] for span in sequence.images if span.key in self.jobs]
        return any(job.launched > 0 for job in jobs)

    def pop(self, sequence: Sequence, start: int) -> tuple[EncodeJob, ...]:
        """Hand the encoded images that end behind a position to the sequence whose prompt is prefilled with them."""
        keys = dict.fromkeys(span.key for span in sequence.images if span.end > start)  # one may stand there twice
        jobs = tuple(map(self.jobs.pop, keys))
        for job in jobs:
            job.leader = sequence
        return jobs

    def fail(self, job: EncodeJob) -> None:
        job.failed = True
        if self.jobs.get(job.key) is job:
            del self.jobs[job.key]

    def drop_idle(self, find_heir: Callable[[str], Sequence | None]) -> list[EncodeJob]:
        """Find new leaders for images whose leaders have ended; drop and return the images without any."""
        idle: list[EncodeJob] = []
        if not self.jobs:
            return idle
        for job in list(self.jobs.values()):
            if job.leader.finalized:
                # One that gets no slot must not keep the room from those that have theirs.
                if (heir := find_heir(job.key)) is not None and self._adapters.has_slot(heir):
                    job.leader = heir
                else:
                    idle.append(self.jobs.pop(job.key))
        return idle

    def _missing(self, sequence: Sequence) -> list[ImageSpan]:
        """Return the images that are neither cached nor about to be, each where it stands first."""
        missing: dict[str, ImageSpan] = {}
        for span in sequence.images:
            if self._cache.image_state(span) == "missing":
                missing.setdefault(span.key, span)
        return list(missing.values())

    def _pages_with(self, crops: ImageInput) -> StoredPages | None:
        """Return stored pages that come with an image, if the device has room for them beside those of other jobs."""
        pages = crops.pages if isinstance(crops, StoredImage) else None
        if pages is None:
            return None
        places = [pages.place, *(job.pages.place for job in self.jobs.values() if job.pages is not None)]
        return pages if sum(place.stop - place.first for place in places) <= self._staged_pages else None

    def _has_room(self, queue: WaitingQueue) -> bool:
        return len(self.jobs) < self._max_jobs and len(self.jobs_of(queue)) < queue.max_jobs

    def _joins(self, sequence: Sequence, key: str) -> bool:
        """Whether an image is being encoded already; the first real-time sequence about it takes the lead."""
        job = self.jobs.get(key)
        if job is None:
            return False
        if sequence.realtime and not job.leader.realtime and self._adapters.has_slot(sequence):
            job.leader = sequence
        return True


def _request_crops(span: ImageSpan) -> tuple[ImageInput | None, BaseException | None]:
    """Return an image's crops, or why there will be none; have them cut where neither is known.

    An image is a plug-in: what it raises fails its request alone.
    """
    image = span.image
    try:
        crops, failure = _read_crops(image), image.failure
        if failure is not None and not isinstance(failure, BaseException):
            raise TypeError(f"an image's failure is {type(failure).__name__}, which is not an exception")
        if crops is None and failure is None:
            image.request_crops(span.pages)
    except Exception as error:
        return None, error
    return crops, failure


def _read_crops(image: ImageRef) -> ImageInput | None:
    crops = image.crops  # once: another request about it may end meanwhile, and drop them on its own thread
    return None if crops is None else read_crops(crops)
