"""Image files on disk: which files are images, which of them a folder holds, and their frames."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from PIL import Image, ImageSequence

from photonlite.config import ImageLimits
from photonlite.errors import ImageDecodeError, ImageError, ImageNotFoundError
from photonlite.images.decode import decode_opened, decoder_errors, open_image
from photonlite.images.source import opened_source

SUFFIXES: Final = ".apng .avif .avifs .bmp .dib .gif .jfif .jpe .jpeg .jpg .pbm .pgm .png .pnm .ppm .tif .tiff .webp"
# Other formats that hold several pictures hold no animation: phones add previews to a JPEG, a TIFF has pages.
ANIMATED: Final = frozenset(("AVIF", "GIF", "PNG", "WEBP"))


class UnreadableImage:
    """Stands for an image that cannot be read; opening it raises the error."""

    def __init__(self, error: ImageError) -> None:
        self.error = error

    def read(self, _: int = -1) -> NoReturn:
        raise self.error


def is_image_file(path: Path) -> bool:
    """Whether a regular file is an image: by its suffix, or else by its header.

    A TIFF needs the suffix: the raw files of cameras begin like one, and hold a thumbnail.
    """
    if path.suffix.lower() in SUFFIXES.split():
        return True
    limits = ImageLimits.from_env()
    try:
        with opened_source(path, limits) as (name, stream):
            return open_image(name, stream, limits).format != "TIFF"
    except ImageError:
        return False


def folder_images(folder: Path) -> tuple[list[Path], list[str]]:
    """Return a folder's images by name, and the names of what else is in it, but for hidden files.

    Raises ImageNotFoundError if there is no image, OSError if the folder cannot be read.
    """
    images, skipped = [], []
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith(".") and is_image_file(path):
            images.append(path)
        elif not path.name.startswith("."):  # other programs' files, such as ._desk.jpg, are no images
            skipped.append(f"{path.name}/" if path.is_dir() else path.name)
    if not images:
        kinds = f"files of these kinds are read: {SUFFIXES}"
        raise ImageNotFoundError(f"the folder {str(folder)!r} holds no image: {kinds}")
    return images, skipped


def image_frames(path: Path, limits: ImageLimits) -> Iterator[Image.Image | UnreadableImage]:
    """Decode a file frame by frame into upright RGB, each with its duration in milliseconds in `info`, if it has one.

    An `UnreadableImage` ends what cannot be read, or cannot be read to its end.
    """
    count = 0
    try:
        with opened_source(path, limits) as (name, stream), decoder_errors(name, "an image"):
            file = open_image(name, stream, limits)
            animated = file.format in ANIMATED
            for frame in ImageSequence.Iterator(file) if animated else (file,):
                # A copy: the decoder of an animation draws the next frame over the pixels of this one.
                image = decode_opened(name, frame.copy() if animated else file)
                if milliseconds := frame.info.get("duration"):
                    image.info["duration"] = float(milliseconds)
                yield image
                count += 1
    except ImageError as error:
        if count:
            error = ImageDecodeError(f"{str(path)!r} ends early, after {count} frames: {error}")
        yield UnreadableImage(error)
