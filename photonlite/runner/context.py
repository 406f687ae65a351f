"""What the forward passes of a runner have in common."""

from dataclasses import dataclass

from torch import Tensor

from photonlite.models.base import Model
from photonlite.runner.buffers import PagedCache
from photonlite.runner.images import Images
from photonlite.runner.slots import PENDING_ROW, SlotShape
from photonlite.runner.tokens import InputEmbedding


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """A model on the device, and what its passes read and write there."""

    model: Model
    inputs: InputEmbedding
    images: Images
    cache: PagedCache
    shape: SlotShape
    pending: Tensor  # the pending table, int32 [R, 3]: what was sampled last for each row

    def embed_pending(self, rows: Tensor) -> Tensor:
        """Embed what rows of a slot, int32 ``[B, 4 + P]``, decode: ``[B, dim]``."""
        return self.inputs.pending(self.pending, rows[:, PENDING_ROW])
