import torch

from bench.bubble.subjects import PROMPT, STOP, fill_randomly, requests
from tests.bubble.small import tiny_subject
from tests.tiny import tiny_config, tiny_model


def test_random_weights_depend_on_the_seed_alone_and_norms_are_the_identity():
    one, other = (tiny_model(tiny_config(), seed=seed) for seed in (0, 1))
    fill_randomly(one, seed=7)
    fill_randomly(other, seed=7)

    for (name, parameter), same in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, same), name
    block = one.text.blocks[0]
    assert torch.equal(block.ln.weight, torch.ones(24))
    assert torch.equal(block.ln.bias, torch.zeros(24))
    assert 0.015 < one.text.wte.std() < 0.025


def test_an_average_prompt_gives_an_answer_of_110_tokens_in_a_context_of_about_850():
    assert STOP - PROMPT + 1 == 110
    assert 840 <= (PROMPT + STOP) / 2 <= 860


def test_requests_are_the_same_for_both_depths_and_other_ones_in_every_round():
    subject = tiny_subject()
    one, same, other = (requests(subject, "text", 3, seed) for seed in (4, 4, 5))

    assert [request.prompt for request in one] == [request.prompt for request in same]
    assert [request.prompt for request in one] != [request.prompt for request in other]
    assert all(token.id >= 21 for request in one for token in request.prompt)
    assert all(1 + len(request.prompt) + request.budget == subject.model.shape.max_context for request in one)
