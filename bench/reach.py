"""How much of photonlite a call passes through: files, classes and functions that a warm `detect` runs.

`python -m bench.reach` loads the shipped checkpoint on the CPU, asks once, then asks about the same PIL image with one
pixel changed, and counts the code under photonlite/ that runs meanwhile on any thread. `--list` prints it by file.
"""

import argparse
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType

from PIL import Image

import photonlite

ROOT = Path(photonlite.__file__).parent


class Reach:
    """Collects qualified names by file while `active`; one of its `note` is every thread's profile function."""

    def __init__(self) -> None:
        self.active = False
        self.names: defaultdict[str, set[str]] = defaultdict(set)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if self.active and event == "call" and code.co_filename.startswith(str(ROOT)):
            self.names[code.co_filename].add(code.co_qualname)

    @property
    def classes(self) -> set[tuple[str, str]]:
        found = {(file, name.split(".")[0]) for file, names in self.names.items() for name in names if "." in name}
        return {(file, name) for file, name in found if name[:1].isupper() or name[:2].strip("_")[:1].isupper()}


def measure(reach: Reach) -> None:
    threading.setprofile(reach.note)  # before the model's threads start
    sys.setprofile(reach.note)
    image = Image.open(ROOT.parent / "assets" / "desk.png").convert("RGB")
    with photonlite.load(device="cpu") as model:
        model.detect(image, "banana")
        changed = image.copy()
        changed.putpixel((0, 0), (1, 2, 3))
        reach.active = True
        model.detect(changed, "banana")
        reach.active = False
    sys.setprofile(None)
    threading.setprofile(None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.reach", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the functions by file")
    options = parser.parse_args()
    reach = Reach()
    measure(reach)
    if options.list:
        for file, names in sorted(reach.names.items()):
            print(f"{Path(file).relative_to(ROOT)}: {', '.join(sorted(names))}")
    functions = sum(map(len, reach.names.values()))
    print(f"{len(reach.names)} files, {len(reach.classes)} classes, {functions} functions")


if __name__ == "__main__":
    main()
