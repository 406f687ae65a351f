import os
import subprocess
import sys

from bench.campaign.hooked import Hooks

CODE = """
import sys, tempfile, time
from datetime import datetime
for line in sys.stdin:
    try:
        tempfile.TemporaryFile().close()
        space = True
    except OSError as error:
        space = error.strerror
    print(time.time() - datetime.now().timestamp(), time.time_ns() / 1e9 - time.time(), space, sep="|", flush=True)
"""


def test_the_clock_and_the_disk_of_another_process_do_as_told():
    with Hooks() as hooks:
        environment = {**os.environ, **hooks.environment}
        with subprocess.Popen(
            [sys.executable, "-c", CODE], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            said = []
            for told in ({}, {"shift_s": -3600.0, "full": True}, {"shift_s": 1800.0}):
                hooks.tell(**told)
                process.stdin.write("\n")
                process.stdin.flush()
                said.append(process.stdout.readline().strip().split("|"))
            process.stdin.close()

    # Between two looks at a clock, a busy machine may let seconds pass.
    assert [round(float(shift), -2) for shift, _, _ in said] == [0, -3600, 1800]
    assert all(abs(float(between)) < 50 for _, between, _ in said)
    assert [space for *_, space in said] == ["True", os.strerror(28), "True"]
    assert not os.path.exists(hooks.environment["CAMPAIGN_HOOKS"])
