"""How much of an outline a linear fit reads off image tokens."""

import pytest
import torch

from bench.nano.evaluation.outline_fit import fit_errors, main


def test_what_the_tokens_tell_has_no_error_and_what_they_do_not_has_its_spread():
    torch.manual_seed(0)
    given = torch.cat((torch.rand(4000, 6), torch.ones(4000, 1)), 1)
    told, free = given[:, :2] / 2 + 0.1, torch.rand(4000, 2)
    errors = fit_errors(given, torch.cat((told, free), 1), torch.arange(4000) < 3200)
    assert errors[0] < 1e-3
    assert errors[1] == pytest.approx(0.25, abs=0.02)  # of numbers evenly between 0 and 1


def test_vertices_that_an_outline_has_not_do_not_count():
    given = torch.cat((torch.rand(400, 3), torch.ones(400, 1)), 1)
    wanted = given[:, :2].clone()
    wanted[::2] = -1
    assert fit_errors(given, wanted, torch.arange(400) < 320)[0] < 0.02


@pytest.mark.slow
def test_the_command_prints_every_vertex(capsys):
    main(["--scenes", "10"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert "patches of 10 scenes" in first
    assert [line.split()[1] for line in lines] == [str(number) for number in range(1, 25)]
