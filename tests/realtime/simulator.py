"""Random arrivals, completions, failures and changed prompts against the state of a real-time loop, step by step.

It keeps books of its own, from what goes in and what comes out, and compares them after every step.
"""

import random

from photonlite.errors import DeadlineError, RequestCancelledError
from photonlite.realtime.frames import FrameFailure, FrameJob, FrameResult, Question
from photonlite.realtime.state import CAUSES, LoopState


class Simulation:
    """One history of a loop, told by its seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        self.capacity = self.random.choice((1, 1, 2, 3))
        self.limit = self.random.choice((None, 0.02, 0.05))
        deadline = None if self.limit is None else 1000 * self.limit
        question = Question.of("detect", object="prompt 0", deadline_ms=deadline)
        self.state = LoopState(question, lambda: self.now, in_flight=self.capacity, window=8)
        self.prompt = 0
        self.arrived: list[float] = []
        self.waiting: int | None = None
        self.jobs: list[FrameJob] = []
        self.results: list[FrameResult] = []
        self.errors = 0
        self.drops = dict.fromkeys(CAUSES, 0)
        self.closed = False

    def run(self, steps: int) -> None:
        moves = [self.submit] * 4 + [self.begin] * 4 + [self.finish] * 3 + [self.fail, self.expire, self.change]
        for _ in range(steps):
            self.now += self.random.choice((0.0, 0.001, 0.01, 0.04))
            self.random.choice(moves)()
            self.check()
        self.close()

    def submit(self) -> None:
        frame = self.state.submit(object(), stamp=f"stamp {len(self.arrived)}")
        assert frame.number == len(self.arrived)
        self.arrived.append(self.now)
        self.drops["superseded"] += self.waiting is not None
        self.waiting = frame.number

    def change(self) -> None:
        self.prompt += 1
        self.limit = self.random.choice((None, 0.02, 0.05))
        deadline = None if self.limit is None else 1000 * self.limit
        self.state.change({"object": f"prompt {self.prompt}", "deadline_ms": deadline})

    def begin(self) -> None:
        job, number = self.state.begin(), self.waiting
        if number is None or len(self.jobs) == self.capacity:
            assert job is None
            return
        self.waiting = None
        if self.limit is not None and self.arrived[number] + self.limit - self.now <= 0:
            assert job is None, "nothing is asked about a frame whose deadline has passed"
            self.drops["expired"] += 1
            return
        assert job is not None
        assert job.frame.number == number == max(self.job_numbers() | {number}), "the newest frame wins"
        assert job.question.arguments["object"] == f"prompt {self.prompt}", "a changed prompt holds from the next frame"
        assert (job.deadline is None) == (job.deadline_s is None) == (self.limit is None)
        assert job.deadline_s is None or 0 < job.deadline_s <= (self.limit or 0)
        self.jobs.append(job)

    def finish(self) -> None:
        if (job := self.take()) is None:
            return
        result = self.state.finish(job, {"frame": job.frame.number})
        if self.results and job.frame.number < self.results[-1].number:
            assert result is None
            self.drops["overtaken"] += 1
            return
        assert result is not None
        assert result.result == {"frame": result.number}
        assert result.stamp == f"stamp {result.number}"
        assert result.latency_s == self.now - self.arrived[result.number]
        assert result.met_deadline == (job.deadline is None or self.now <= job.deadline)
        self.results.append(result)

    def fail(self) -> None:
        if (job := self.take()) is not None:
            failure = self.state.fail(job, ValueError("broken image"))
            assert isinstance(failure, FrameFailure)
            assert failure.number == job.frame.number
            self.errors += 1

    def expire(self) -> None:
        if (job := self.take()) is not None:
            failure = self.state.fail(job, DeadlineError("too late"))
            assert (failure is None) == (job.deadline is not None)
            self.drops["deadline"] += failure is None
            self.errors += failure is not None

    def close(self) -> None:
        drain = self.random.random() < 0.5
        self.state.close(drain=drain)
        if self.waiting is not None and not drain:
            self.waiting = None
            self.drops["closed"] += 1
        self.begin() if len(self.jobs) < self.capacity else None
        while self.jobs:
            job = self.jobs.pop()
            assert self.state.fail(job, RequestCancelledError("closed")) is None
            self.drops["closed"] += 1
        self.begin()
        while self.jobs:
            self.finish()
        self.check()
        assert self.state.idle

    def take(self) -> FrameJob | None:
        return self.jobs.pop(self.random.randrange(len(self.jobs))) if self.jobs else None

    def job_numbers(self) -> set[int]:
        return {job.frame.number for job in self.jobs}

    def check(self) -> None:
        stats = self.state.stats()
        numbers = [result.number for result in self.results]
        assert numbers == sorted(set(numbers)), "results come in the order of their frames"
        assert stats.waiting == (self.waiting is not None)
        assert stats.in_flight == len(self.jobs) <= self.capacity
        assert (stats.submitted, stats.answered) == (len(self.arrived), len(self.results))
        assert (stats.failed, stats.dropped) == (self.errors, self.drops)
        accounted = stats.answered + stats.failed + sum(stats.dropped.values()) + stats.waiting + stats.in_flight
        assert stats.submitted == accounted, "every frame is counted once"
        assert stats.late == sum(not result.met_deadline for result in self.results)
        assert stats.missed == stats.late + self.drops["expired"] + self.drops["deadline"]
        self.check_times()

    def check_times(self) -> None:
        stats, latest = self.state.stats(), self.results[-8:]
        if latest:
            assert stats.latency.p99 == max(result.latency_s for result in latest)
            assert stats.latency.p50 <= stats.latency.p95 <= stats.latency.p99
            assert self.state.age(latest[-1]) == self.now - self.arrived[latest[-1].number]
        if len(latest) > 1:
            assert stats.age.p50 >= 0
            assert stats.jitter_s >= 0
        assert stats.mean_rate >= 0
