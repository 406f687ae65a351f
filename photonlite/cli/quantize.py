"""`photonlite quantize`: a checkpoint with weights in 8 or 4 bits."""

import argparse
import sys
from pathlib import Path

import photonlite
from photonlite.cli.inputs import expand
from photonlite.cli.outputs import check_writable


def run_quantize(options: argparse.Namespace) -> int:
    """Write the folder and print its path; returns the exit code 0."""
    check_writable("FOLDER", Path(options.folder), folder=True)
    folder = photonlite.quantize(
        options.model,
        options.folder,
        weights=options.weights,
        vision_weights=options.vision_weights,
        dtype=options.dtype,
        revision=options.revision,
        images=[] if options.images is None else expand([options.images])[0],
        progress=True,
    )
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{size / 1e6:,.1f} MB; to use it: photonlite detect IMAGE OBJECT --model {folder}", file=sys.stderr)
    print(folder)
    return 0
