"""Bugs to seed into videos and ids over frames."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "the frames of a film pile up in memory",
        "video/answers.py",
        "                room.acquire()\n",
        "",
        "tests/video/test_answers.py",
    ),
    Mutant(
        "frames between answers are asked about as well",
        "video/answers.py",
        "number % every == 0",
        "True",
        "tests/video/test_answers.py",
    ),
    Mutant(
        "a video that was cut off looks whole",
        "video/reader.py",
        "max(end, now + 2 * step) + _LOST_S < duration",
        "max(end, now + 2 * step) + _LOST_S < 0",
        "tests/video/test_reader.py",
    ),
    Mutant(
        "sound runs on after the last frame of a video that was given up",
        "video/writer.py",
        "packet.time_base) > time_s",
        "packet.time_base) > time_s + 9",
        "tests/video/test_writer.py",
    ),
    Mutant(
        "a lost stream is given up after thirty interruptions in all",
        "video/reader.py",
        "failures, connected = 0, True",
        "connected = True",
        "tests/video/test_reader.py",
    ),
    Mutant(
        "a long last frame is taken for a video that was cut off",
        "video/reader.py",
        "max(end, now + 2 * step) + _LOST_S < duration",
        "now + 2 * step + _LOST_S < duration",
        "tests/video/test_reader.py",
    ),
    Mutant(
        "a feed that stops waits until a lost stream is given up",
        "realtime/sources.py",
        "wait=self._pause",
        "wait=lambda seconds: False",
        "tests/realtime/test_sources.py",
    ),
    Mutant(
        "objects of different labels exchange their ids",
        "results/tracking.py",
        "        boxes += _APART * ",
        "        boxes += 0 * ",
        "tests/results/test_tracking.py",
    ),
    Mutant(
        "ids go on when something else is asked",
        "realtime/tracking.py",
        " or self._asked != asked",
        "",
        "tests/realtime/test_tracking.py",
    ),
]
