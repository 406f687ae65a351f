import os
import socket

import pytest
import torch
import torch.multiprocessing as mp

from bench.nano.training.ranks import Ranks


@pytest.fixture
def free_port():
    """Bound, but not listened at: other programs are not given the port, and the test may bind it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def one_of_two(rank, port, folder):
    """What each process does: it writes down what it was left with."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = Ranks("cpu")
    tensors = [torch.full((2, 3), float(rank)), torch.tensor([4.0 * rank])]
    ranks.average(tensors)
    ranks.wait()
    torch.save((ranks.is_first, tensors, ranks.broadcast(10.0 + rank)), f"{folder}/{rank}")
    ranks.close()


@pytest.mark.long
def test_gradients_are_averaged_and_the_first_keeps_the_clock(tmp_path, free_port):
    mp.spawn(one_of_two, (free_port, str(tmp_path)), nprocs=2)
    for rank in range(2):
        leads, tensors, clock = torch.load(tmp_path / str(rank))
        assert leads == (rank == 0)
        assert torch.equal(tensors[0], torch.full((2, 3), 0.5))
        assert torch.equal(tensors[1], torch.tensor([2.0]))
        assert clock == 10.0


def test_alone_nothing_is_exchanged(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    ranks, tensor = Ranks("cpu"), torch.tensor([3.0])
    ranks.average([tensor])
    ranks.wait()
    ranks.close()
    assert (ranks.rank, ranks.count, ranks.is_first, float(tensor)) == (0, 1, True, 3.0)
    assert ranks.broadcast(1.5) == pytest.approx(1.5)
