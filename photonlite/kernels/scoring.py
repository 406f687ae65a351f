"""How probable some ids are among those that may stand: what the scores of choices are made of.

Plain PyTorch of fixed shapes that never waits for the device. It runs behind the choice and only where a row asks for
it, so that no graph holds it.
"""

from torch import Tensor

from photonlite.kernels.reference_choosing import masked, wide


def score_ids(logits: Tensor, masks: Tensor, ids: Tensor, scores: Tensor) -> None:
    """Give the probabilities of ids, at temperature 1 and among those that the masks allow.

    Args:
        logits: Over ids, ``[B, vocab]``, any floating type.
        masks: Allowed ids as bits, int32 ``[B, words]``.
        ids: int32 ``[B, n]``; those below 0 ask for nothing, and in other rows there may be any.
        scores: Written to, float32 ``[B, n]``: 0 for an id that may not stand, rubbish where nothing is asked for.
    """
    probabilities = masked(wide(logits), masks).softmax(dim=-1)
    scores.copy_(probabilities.gather(1, ids.clamp(min=0).long()))
