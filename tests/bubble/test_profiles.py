import dataclasses

from bench.bubble.profiles import StepProfile
from photonlite.models.base import ModelView
from tests.bubble.small import tiny_subject


class OwnSteps(ModelView):
    """A model with a step decoder of its own, as there is one on a card."""

    def __init__(self, model):
        super().__init__(model)
        self.steps = 0

    def step_decoder(self):
        def step(x, rows, cache):
            self.steps += 1
            return x

        return step


def test_the_forward_pass_that_is_profiled_is_the_models_own_step():
    subject = tiny_subject()
    model = OwnSteps(subject.model)
    profile = StepProfile(dataclasses.replace(subject, model=model), streams=2)
    try:
        before = model.steps
        text = profile.forward()
    finally:
        profile.close()

    assert before == 1
    assert model.steps > before
    assert "scaled_dot_product" not in text  # plain operations would attend
