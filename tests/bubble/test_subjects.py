import dataclasses

import pytest
import torch

from bench.bubble.subjects import PROMPT, STOP, answer_length, ending_at, fill_randomly, requests
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


@pytest.mark.parametrize(("prompt", "words", "boxes"), [(40, 21, 22), (39, 22, 22), (38, 23, 25)])
def test_a_list_ends_behind_a_whole_box(prompt, words, boxes):
    subject = tiny_subject()
    assert answer_length(subject, "text", prompt) == words
    assert answer_length(subject, "detect", prompt) == boxes


def test_a_subject_that_ends_elsewhere_keeps_its_weights_and_leaves_the_first_one_alone():
    subject = tiny_subject()
    other = ending_at(subject, stop=30, prompt=25, spread=2)

    hidden = torch.zeros(1, 24, dtype=torch.float64)
    assert (other.stop, other.prompt, other.spread, subject.stop) == (30, 25, 2, 60)
    assert other.model is not subject.model
    assert other.model.embed(torch.tensor([5])).equal(subject.model.embed(torch.tensor([5])))
    assert other.model.logits(hidden).equal(subject.model.logits(hidden))


def test_only_a_model_with_a_stop_can_end_elsewhere():
    plain = dataclasses.replace(tiny_subject(), model=tiny_model(tiny_config()))
    with pytest.raises(TypeError, match="no stop to move"):
        ending_at(plain, stop=30, prompt=25, spread=2)
