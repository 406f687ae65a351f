"""Warnings of Pillow, for programs that are given damaged images by strangers."""

import warnings


def ignore_pillow_warnings() -> None:
    """Have no warning of Pillow shown or remembered in this process from now on.

    Pillow warns of what it finds in damaged files, in words that name the file's numbers. Python remembers all words
    that it has shown, for good: such images would leave lines on stderr and memory behind. Damage that matters raises
    an error as well, of which whoever sent the image is told.

    For programs, at their start: filters belong to the process. Python cannot set them for one thread
    (`warnings.catch_warnings` takes from other threads what they have set), so libraries leave them alone.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
