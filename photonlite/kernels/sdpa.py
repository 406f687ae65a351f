"""Scaled dot-product attention by one named backend: which is the quickest depends on the card and on the shape."""

import contextlib
import warnings
from collections.abc import Iterator

from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
"""What is worth a try on a card. cuDNN plans for each shape anew: good for those known before requests come."""


@contextlib.contextmanager
def only_backend(backend: SDPBackend) -> Iterator[None]:
    """Let attention run by one backend alone.

    Inside, attention raises RuntimeError where the backend cannot do it; the reasons, which PyTorch gives as warnings,
    are left out.
    """
    with warnings.catch_warnings(), sdpa_kernel([backend]):
        warnings.simplefilter("ignore")
        yield
