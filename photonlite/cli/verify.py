"""`photonlite verify`: a checkpoint beside other ways to compute the same, as a table."""

import argparse
import dataclasses
import sys

from tqdm import tqdm

import photonlite
from photonlite.cli.checkpoints import print_table
from photonlite.cli.run import to_json

FAILED = 1


def run_verify(options: argparse.Namespace) -> int:
    """Print the comparisons as a table or as JSON lines; returns 1 if one of them fails, else 0."""
    where = {"device": options.device, "dtype": options.dtype, "revision": options.revision}
    rows = []
    with tqdm(unit="check", disable=None, desc="verify", leave=False) as progress:
        for row in photonlite.verify(options.model, **where):
            rows.append(row)
            progress.set_description(row.check)
            progress.update()
    if options.json:
        for row in rows:
            print(to_json(dataclasses.asdict(row)))
    else:
        cells = ((row.check, row.against, row.difference, row.limit, "ok" if row.passed else "FAILED") for row in rows)
        print_table(("CHECK", "AGAINST", "DIFFERENCE", "LIMIT", "RESULT"), cells)
    if all(row.against_itself for row in rows):
        print("photonlite: compared with itself only: no other implementation here reads these files", file=sys.stderr)
    return 0 if all(row.passed for row in rows) else FAILED
