"""From the IMAGE arguments to images: files, folders, globs, stdin."""

import glob
import sys
from pathlib import Path

from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageNotFoundError, InputError
from photonlite.images.decode import load_image

STDIN = "-"
# What a folder is searched for. A file that is named is read whatever its suffix.
SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)


def expand(arguments: list[str]) -> tuple[list[str], bool]:
    """List the images that the arguments name, sorted by name inside a folder or glob.

    Returns:
        The images' names, and whether the arguments ask for several: more than one, a folder or a glob, so that the
        form of the output depends on what was typed and not on how many files a folder happens to hold.

    Raises:
        ImageNotFoundError: A folder without images, or a glob that matches no file.
    """
    names: list[str] = []
    several = len(arguments) > 1
    for argument in arguments:
        path = Path(argument)
        if argument == STDIN or path.is_file():
            names.append(argument)
        elif path.is_dir():
            names += _images_in(path)
            several = True
        elif glob.has_magic(argument):
            names += _matching(argument)
            several = True
        else:
            names.append(argument)  # to be refused when its turn comes, so that the others are not held up
    return names, several


def check_text(text: str | None, command: str) -> None:
    """Refuse an image in the place of the text: `photonlite detect *.png`, and the object forgotten.

    Raises:
        InputError: The text is the name of an image on this machine.
    """
    if text is not None and Path(text).suffix.lower() in SUFFIXES and Path(text).is_file():
        raise InputError(f"the last argument says what to {command}, but {text!r} is an image: add the text after it")


def read(name: str, limits: ImageLimits) -> Image.Image:
    """Open one image by its name.

    Returns:
        The image: mode RGB, upright.

    Raises:
        ImageError: The image is missing, too large or cannot be decoded.
        InputError: stdin is a terminal.
    """
    if name != STDIN:
        return load_image(name, limits)
    if sys.stdin.isatty():
        raise InputError("- reads an image from stdin, which is a terminal: pipe a file in")
    return load_image(sys.stdin.buffer, limits)


def _images_in(folder: Path) -> list[str]:
    found = sorted(
        str(path)
        for path in folder.iterdir()
        # Names with a leading dot are the bookkeeping of other programs, ._desk.jpg for one.
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
    if not found:
        kinds = " ".join(sorted(SUFFIXES))
        raise ImageNotFoundError(f"the folder {str(folder)!r} holds no image: files of these kinds are read: {kinds}")
    return found


def _matching(pattern: str) -> list[str]:
    found = sorted(name for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
    if not found:
        raise ImageNotFoundError(f"no file matches {pattern!r}: check the folder and the pattern")
    return found
