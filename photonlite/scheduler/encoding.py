"""Pictures on their way through the vision encoder: which are begun, which crops go next, whom they are for.

```
waiting sequence ── its picture is not cached ──> cut (on another thread) ──> job ── crop groups ──> encoded
                                                                               └ led by one sequence, followed by others
```
"""

from photonlite.batch import CropGroup, EncodeJob
from photonlite.cache.manager import CacheManager
from photonlite.sequence import Sequence

_CUT_AHEAD = 16
"""Waiting requests whose pictures are cut into crops in advance."""


class Encodings:
    """The pictures that are being encoded, each for the sequence that leads it; others wait for what comes of it.

    Args:
        cache: Knows which pictures need no encoding.
        max_jobs: Pictures whose features are on the device at a time.
        max_picture_bytes: That one launch copies to the device, to make crops of them there.

    Attributes:
        jobs: By key, in the order of their beginning.
    """

    def __init__(self, cache: CacheManager, max_jobs: int, max_picture_bytes: int) -> None:
        self.jobs: dict[str, EncodeJob] = {}
        self._cache = cache
        self._max_jobs = max_jobs
        self._max_picture_bytes = max_picture_bytes
        self._begun = 0

    def done(self, key: str) -> bool:
        """Tell whether launched steps encode a picture to its end."""
        job = self.jobs.get(key)
        return job is not None and job.encoded

    def leaders(self) -> list[Sequence]:
        """Give the sequences whose pictures have been encoded for them."""
        return [job.leader for job in self.jobs.values() if job.encoded and job.leader and not job.leader.finalized]

    def begin(self, waiting: list[Sequence]) -> list[Sequence]:
        """Begin to encode the pictures of the first waiting sequences; have those of the next ones cut.

        Returns:
            Sequences whose pictures cannot be cut.
        """
        unusable = []
        for sequence in waiting[: max(_CUT_AHEAD, self._max_jobs)]:
            picture = sequence.picture
            if picture is None or picture.key in self.jobs or self._cache.picture_state(picture.key) != "missing":
                continue
            crops = picture.crops  # once: another request about it may end meanwhile, and drop them on its own thread
            if picture.failure is not None:
                unusable.append(sequence)
            elif crops is None:
                picture.request_crops()
            elif len(self.jobs) < self._max_jobs:
                self.jobs[picture.key] = EncodeJob(self._begun, picture.key, crops, sequence)
                self._begun += 1
        return unusable

    def groups(self, room: int, enough: int) -> tuple[CropGroup, ...]:
        """Take the next crops, oldest picture first.

        Args:
            room: Crops at most.
            enough: Crops from which on a larger launch makes them no cheaper: it ends where the next picture would be
                split, so that a picture does not wait for another's crops.
        """
        groups = self._next(room, enough)
        for group in groups:
            group.job.launched += group.count
        return tuple(groups)

    def next_crops(self, room: int, enough: int) -> int:
        """Tell how many crops `groups` would take."""
        return sum(group.count for group in self._next(room, enough))

    def take(self, sequence: Sequence) -> EncodeJob | None:
        """Hand an encoded picture to the sequence that goes on with it."""
        if sequence.picture is None:
            return None
        job = self.jobs.pop(sequence.picture.key)
        job.leader = sequence
        return job

    def fail(self, job: EncodeJob) -> None:
        """Give a picture up: a step that encoded it has failed."""
        job.failed = True
        if self.jobs.get(job.key) is job:
            del self.jobs[job.key]

    def drop_idle(self, waiting: list[Sequence]) -> list[EncodeJob]:
        """Find heirs for pictures whose leaders have ended, and drop those that nobody waits for any more."""
        idle = []
        for job in list(self.jobs.values()):
            if job.leader is None or job.leader.finalized:
                job.leader = _first_about(job.key, waiting)
                if job.leader is None:
                    idle.append(self.jobs.pop(job.key))
        return idle

    def _next(self, room: int, enough: int) -> list[CropGroup]:
        groups: list[CropGroup] = []
        taken = copied = 0
        for job in self.jobs.values():
            left = job.total - job.launched
            if left == 0:
                continue
            if taken == room or (taken >= enough and taken + left > room):
                break
            if job.launched == 0:
                copied += job.picture_bytes
                if groups and copied > self._max_picture_bytes:
                    break  # nobody overtakes it
            groups.append(CropGroup(job, job.launched, min(left, room - taken)))
            taken += groups[-1].count
        return groups


def _first_about(key: str, waiting: list[Sequence]) -> Sequence | None:
    """Find the first waiting sequence about a picture: a look at the whole queue, when a leader has gone."""
    return next((one for one in waiting if one.picture is not None and one.picture.key == key), None)
