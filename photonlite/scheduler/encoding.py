"""Images on their way through the vision encoder: which are begun, which crops go next, whom they are for.

```
waiting sequence ── its image is not cached ──> cut (on another thread) ──> job ── crop groups ──> encoded
                                                                               └ led by one sequence, followed by others
```
"""

from dataclasses import dataclass

from photonlite.batch import CropGroup, EncodeJob
from photonlite.cache.manager import CacheManager
from photonlite.scheduler.policy import REALTIME_JOBS
from photonlite.scheduler.waiting import Waiting
from photonlite.sequence import CutImage, ImageRef, Sequence, UncutImage, read_crops

_CUT_AHEAD = 16
"""Waiting requests whose images are cut into crops in advance."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A waiting sequence whose image cannot be had.

    Attributes:
        sequence: Which.
        error: Why.
    """

    sequence: Sequence
    error: BaseException


class Encodings:
    """The images that are being encoded, each for the sequence that leads it; others wait for what comes of it.

    Images of real-time requests are begun, and their crops launched, apart from those of bulk ones.

    Args:
        cache: Knows which images need no encoding.
        max_jobs: Images of bulk requests whose features are on the device at a time.
        max_image_bytes: That one launch copies to the device, to make crops of them there.

    Attributes:
        jobs: By key, in the order of their beginning.
    """

    def __init__(self, cache: CacheManager, max_jobs: int, max_image_bytes: int) -> None:
        self.jobs: dict[str, EncodeJob] = {}
        self._cache = cache
        self._max_jobs = max_jobs
        self._max_image_bytes = max_image_bytes
        self._begun = 0

    def done(self, key: str) -> bool:
        """Tell whether launched steps encode an image to its end."""
        job = self.jobs.get(key)
        return job is not None and job.encoded

    def leaders(self, *, realtime: bool) -> list[Sequence]:
        """Give the sequences of a class whose images have been encoded for them."""
        return [job.leader for job in self._led(realtime) if job.encoded and job.leader and not job.leader.finalized]

    def begin(self, waiting: Waiting, *, realtime: bool) -> list[Unusable]:
        """Begin to encode the images of a class's first waiting sequences; have those of the next ones cut.

        Returns:
            Sequences whose images cannot be cut.
        """
        unusable = []
        for sequence in waiting.first(max(_CUT_AHEAD, self._max_jobs), realtime=realtime):
            image, key = sequence.image, sequence.image_key
            if image is None or key is None or self._joins(sequence, key) or self._cached(key):
                continue
            crops, failure = _ask_for_crops(image)
            if failure is not None:
                unusable.append(Unusable(sequence, failure))
            elif crops is not None and self._has_place(realtime):
                self.jobs[key] = EncodeJob(self._begun, key, crops, sequence)
                self._begun += 1
        return unusable

    def groups(self, room: int, enough: int, *, realtime: bool) -> tuple[CropGroup, ...]:
        """Take the next crops of a class, oldest image first.

        Args:
            room: Crops at most.
            enough: Crops from which on a larger launch makes them no cheaper: it ends where the next image would be
                split, so that an image does not wait for another's crops.
            realtime: Which class.
        """
        groups = self._next(room, enough, realtime)
        for group in groups:
            group.job.launched += group.count
        return tuple(groups)

    def next_crops(self, room: int, enough: int, *, realtime: bool) -> int:
        """Tell how many crops `groups` would take."""
        return sum(group.count for group in self._next(room, enough, realtime))

    def begun(self, sequence: Sequence) -> bool:
        """Tell whether crops of a sequence's image have been launched."""
        job = None if sequence.image_key is None else self.jobs.get(sequence.image_key)
        return job is not None and job.launched > 0

    def crops_missing(self, sequence: Sequence) -> int:
        """Give the crops of a sequence's image, if it is not cached; 0 as long as it is not cut.

        Raises:
            Exception: What the image raises.
        """
        image, key = sequence.image, sequence.image_key
        if image is None or key is None or self._cached(key) or (crops := _read_crops(image)) is None:
            return 0
        return crops.count

    def take(self, sequence: Sequence) -> EncodeJob | None:
        """Hand an encoded image to the sequence that goes on with it."""
        if sequence.image_key is None:
            return None
        job = self.jobs.pop(sequence.image_key)
        job.leader = sequence
        return job

    def fail(self, job: EncodeJob) -> None:
        """Give an image up: a step that encoded it has failed."""
        job.failed = True
        if self.jobs.get(job.key) is job:
            del self.jobs[job.key]

    def restart(self) -> list[EncodeJob]:
        """Give up all that has been encoded and not handed on, and name it; the sequences begin again."""
        begun = list(self.jobs.values())
        for job in begun:
            self.fail(job)
        return begun

    def drop_idle(self, waiting: Waiting) -> list[EncodeJob]:
        """Find heirs for images whose leaders have ended, and drop those that nobody waits for any more."""
        idle = []
        for job in list(self.jobs.values()):
            if job.leader is None or job.leader.finalized:
                job.leader = waiting.about(job.key)
                if job.leader is None:
                    idle.append(self.jobs.pop(job.key))
        return idle

    def _led(self, realtime: bool) -> list[EncodeJob]:
        """Give the jobs of a class, which is that of their leaders."""
        return [job for job in self.jobs.values() if (job.leader is not None and job.leader.realtime) == realtime]

    def _cached(self, key: str) -> bool:
        return self._cache.image_state(key) != "missing"

    def _has_place(self, realtime: bool) -> bool:
        if len(self.jobs) >= self._max_jobs + REALTIME_JOBS:
            return False
        return realtime or len(self._led(realtime=False)) < self._max_jobs

    def _joins(self, sequence: Sequence, key: str) -> bool:
        """Tell whether an image is being encoded already; the first real-time sequence about it takes the lead."""
        job = self.jobs.get(key)
        if job is None:
            return False
        if sequence.realtime and not (job.leader is not None and job.leader.realtime):
            job.leader = sequence
        return True

    def _next(self, room: int, enough: int, realtime: bool) -> list[CropGroup]:
        groups: list[CropGroup] = []
        taken = copied = 0
        for job in self._led(realtime):
            left = job.total - job.launched
            if left == 0:
                continue
            if taken == room or (taken >= enough and taken + left > room):
                break
            if job.launched == 0:
                copied += job.image_bytes
                if groups and copied > self._max_image_bytes:
                    break  # nobody overtakes it
            groups.append(CropGroup(job, job.launched, min(left, room - taken)))
            taken += groups[-1].count
        return groups


def _ask_for_crops(image: ImageRef) -> tuple[CutImage | UncutImage | None, BaseException | None]:
    """Give an image's crops, or why there will be none; where they are not there yet, have them made.

    An image is a plug-in: what it raises is its request's fault alone.
    """
    try:
        crops, failure = _read_crops(image), image.failure
        if failure is not None and not isinstance(failure, BaseException):
            raise TypeError(f"an image's failure is {type(failure).__name__}, which is not an exception")
        if crops is None and failure is None:
            image.request_crops()
    except Exception as error:
        return None, error
    return crops, failure


def _read_crops(image: ImageRef) -> CutImage | UncutImage | None:
    crops = image.crops  # once: another request about it may end meanwhile, and drop them on its own thread
    return None if crops is None else read_crops(crops)
