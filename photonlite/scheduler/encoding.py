"""Images on their way through the vision encoder: which are begun, which crops go next, which sequence leads each.

```
waiting sequence ── its image is not cached ──> cut (on another thread) ──> job ── crop groups ──> encoded
                                                                               └ led by one sequence, followed by others
```
"""

from collections.abc import Callable, Iterable

from photonlite.batch import CropGroup, EncodeJob
from photonlite.cache.manager import CacheManager
from photonlite.scheduler.limits import REALTIME_JOBS, Limits
from photonlite.sequence import CutImage, ImageRef, Sequence, UncutImage, read_crops

Member = Callable[[Sequence], bool]
"""Whether a sequence belongs to the class of requests that a launch is for."""


class EncoderQueue:
    """Images that are being encoded, by key, in the order of their beginning; each belongs to its leader's class."""

    def __init__(self, cache: CacheManager, limits: Limits) -> None:
        self.jobs: dict[str, EncodeJob] = {}
        self._cache = cache
        self._max_jobs = limits.max_jobs + REALTIME_JOBS
        self._max_image_bytes = limits.max_image_bytes
        self._begun = 0

    def is_encoded(self, key: str) -> bool:
        """Whether launched steps encode an image to its end."""
        job = self.jobs.get(key)
        return job is not None and job.encoded

    def has_begun(self, sequence: Sequence) -> bool:
        """Whether crops of a sequence's image have been launched."""
        job = None if sequence.image_key is None else self.jobs.get(sequence.image_key)
        return job is not None and job.launched > 0

    def jobs_of(self, member: Member) -> list[EncodeJob]:
        """Return the jobs of a class."""
        return [job for job in self.jobs.values() if job.leader is None or member(job.leader)]

    def begin(
        self, sequences: Iterable[Sequence], member: Member, max_jobs: int
    ) -> list[tuple[Sequence, BaseException]]:
        """Begin to encode the images of the first sequences of a class; have those of the next ones cut.

        Returns:
            Sequences whose images cannot be cut, and why.
        """
        unusable = []
        for sequence in sequences:
            image, key = sequence.image, sequence.image_key
            if image is None or key is None or self._joins(sequence, key) or self._is_cached(key):
                continue
            crops, failure = _request_crops(image)
            if failure is not None:
                unusable.append((sequence, failure))
            elif crops is not None and len(self.jobs) < self._max_jobs and len(self.jobs_of(member)) < max_jobs:
                self.jobs[key] = EncodeJob(self._begun, key, crops, sequence)
                self._begun += 1
        return unusable

    def next_groups(self, member: Member, room: int, enough: int) -> tuple[CropGroup, ...]:
        """Choose the next crops of a class, at most `room`, oldest image first.

        From `enough` crops on a larger launch makes them no cheaper: the launch then ends where the next image would be
        split, so that an image does not wait for another's crops.
        """
        groups: list[CropGroup] = []
        taken = copied = 0
        for job in self.jobs_of(member):
            left = job.total - job.launched
            if left == 0:
                continue
            if taken == room or (taken >= enough and taken + left > room):
                break
            if job.launched == 0:
                copied += job.image_bytes
                if groups and copied > self._max_image_bytes:
                    break  # no later image overtakes it
            groups.append(CropGroup(job, job.launched, min(left, room - taken)))
            taken += groups[-1].count
        return tuple(groups)

    def launch(self, groups: Iterable[CropGroup]) -> None:
        """Count chosen crops as launched."""
        for group in groups:
            group.job.launched += group.count

    def crops_missing(self, sequence: Sequence) -> int:
        """Return how many crops of a sequence's image must be encoded; 0 while it is not cut. The image may raise."""
        image, key = sequence.image, sequence.image_key
        if image is None or key is None or self._is_cached(key) or (crops := _read_crops(image)) is None:
            return 0
        return crops.count

    def pop(self, sequence: Sequence) -> EncodeJob | None:
        """Hand an encoded image to the sequence whose prompt is prefilled with it."""
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
        """Give up and return all images that are not handed on; their sequences begin again."""
        begun = list(self.jobs.values())
        for job in begun:
            self.fail(job)
        return begun

    def drop_idle(self, find_heir: Callable[[str], Sequence | None]) -> list[EncodeJob]:
        """Find new leaders for images whose leaders have ended; drop and return the images without any."""
        idle = []
        for job in list(self.jobs.values()):
            if job.leader is None or job.leader.finalized:
                job.leader = find_heir(job.key)
                if job.leader is None:
                    idle.append(self.jobs.pop(job.key))
        return idle

    def _is_cached(self, key: str) -> bool:
        return self._cache.image_state(key) != "missing"

    def _joins(self, sequence: Sequence, key: str) -> bool:
        """Whether an image is being encoded already; the first real-time sequence about it takes the lead."""
        job = self.jobs.get(key)
        if job is None:
            return False
        if sequence.realtime and not (job.leader is not None and job.leader.realtime):
            job.leader = sequence
        return True


def _request_crops(image: ImageRef) -> tuple[CutImage | UncutImage | None, BaseException | None]:
    """Return an image's crops, or why there will be none; have them cut where neither is known.

    An image is a plug-in: what it raises fails its request alone.
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
