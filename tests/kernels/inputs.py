"""Tables of sampled tokens' embeddings, and a pending table with tokens of every kind."""

import torch
from torch import Tensor

from photonlite.kernels.reference.embedding import InputTables

Case = tuple[Tensor, Tensor, InputTables]


def random_case(
    count: int, dim: int, frequencies: int, dtype: torch.dtype, kinds: tuple[int, ...] = (0, 1, 2), device: str = "cpu"
) -> Case:
    """Arguments of `embed_pending`.

    Args:
        count: Rows.
        dim: Of an embedding.
        frequencies: Of a size.
        dtype: Of the tables.
        kinds: 0 for words, 1 for coordinates, 2 for sizes: the rows' kinds in turn.
        device: Where they are.
    """
    vocab, coordinates, sizes = 50, 40, 30

    def random(*size: int) -> Tensor:
        return torch.randn(size).to(dtype).to(device)

    tables = InputTables(
        words=random(vocab, dim),
        coordinates=random(coordinates, dim),
        sizes=torch.linspace(0, 1, sizes, device=device),
        frequencies=random(2, frequencies) * 3,
        weight=random(dim, 2 * frequencies),
        bias=random(dim),
    )
    pending = torch.full((count + 2, 3), 10**6, dtype=torch.int32)  # what is not asked for must not be read
    rows = torch.randperm(count + 2)[:count].int()
    for index, row in enumerate(rows.tolist()):
        kind = kinds[index % len(kinds)]
        bins = torch.randint(0, sizes if kind == 2 else coordinates, (2,)).tolist()
        numbers = [int(torch.randint(0, vocab, ())), *bins[:kind], -1, -1][:3]
        pending[row] = torch.tensor(numbers, dtype=torch.int32)
    apart = rows[:, None].expand(-1, 4).contiguous()[:, 0]
    return pending.to(device), apart.to(device), tables
