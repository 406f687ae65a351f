"""Bugs to seed into photonlite/models/."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "a bias added by every rank",
        "models/moondream/weights.py",
        "    if name.endswith(SUMMED_BIASES) and ranks.rank > 0:\n        return torch.zeros_like(value)\n",
        "",
        "tests/models/test_parallel.py",
    ),
    Mutant(
        "every rank has the first share",
        "models/parallel.py",
        "whole.narrow(dim, rank * size, size)",
        "whole.narrow(dim, 0, size)",
        "tests/models/test_parallel.py",
    ),
    Mutant(
        "a tied head that is whole on every rank",
        "models/qwen/parallel.py",
        "text.words.chunk(ranks.count)[ranks.rank]",
        "text.words",
        "tests/models/test_parallel.py",
    ),
    Mutant(
        "the last block keeps its keys to itself",
        "models/moondream/fused/prefill.py",
        "self._last_kv(rows), prompts.positions, prompts.slots, self._rotary",
        "self._last_kv(rows), prompts.positions, None, self._rotary",
        "tests/models/moondream/fused/test_prefill.py",
    ),
    Mutant(
        "the last block waits for a count that the next step clears",
        "models/moondream/fused/decode.py",
        "x, stats, None if last else handshake)",
        "x, stats, handshake)",
        "tests/models/moondream/fused/test_decode.py",
    ),
    Mutant(
        "a step that failed leaves its counts to the next one",
        "models/moondream/fused/decode.py",
        "            self._ready.zero_()  #",
        "            pass  #",
        "tests/models/moondream/fused/test_decode.py",
    ),
    Mutant(
        "a packed model keeps its weights twice",
        "models/moondream/fused/layers.py",
        "_share(inward, w_in[rows:], b_in[rows:])",
        "_share(inward, w_in[rows:].clone(), b_in[rows:])",
        "tests/models/moondream/fused/test_layers.py",
    ),
    Mutant(
        "without fused kernels images are encoded by them all the same",
        "models/base.py",
        "= self._model.vision\n",
        "= self._model.crop_encoder(fp8=fp8)\n",
        "tests/models/test_base.py",
    ),
    Mutant(
        "what the last block's experts return is forgotten",
        "models/moondream/fused/mixture_decode.py",
        "return add_and_norm(x, added, None, None)",
        "return x",
        "tests/models/moondream/fused/test_mixture.py",
    ),
    Mutant(
        "every expert gets a share, chosen or not",
        "kernels/reference/experts.py",
        "best[:, :count].to(wide).softmax(dim=1)",
        "best.to(wide).softmax(dim=1)[:, :count].contiguous()",
        "tests/models/moondream/test_moondream3.py",
    ),
    Mutant(
        "values are scaled as queries are",
        "models/moondream/text.py",
        "return q * of_q, v * of_v",
        "return q * of_q, v * of_q",
        "tests/models/moondream/test_moondream3.py",
    ),
    Mutant(
        "both halves of a joined matrix are its upper one",
        "models/moondream/weights.py",
        "mapped.chunk(2)[self.half]",
        "mapped.chunk(2)[0]",
        "tests/models/moondream/test_moondream3.py",
    ),
    Mutant(
        "sliding layers of Gemma 2 see everything",
        "models/paligemma/text.py",
        "window = config.window if config.sliding[layer] else None",
        "window = None",
        "tests/models/paligemma/test_model.py",
    ),
    Mutant(
        "embeddings of words are scaled without rounding",
        "models/paligemma/text.py",
        "torch.tensor(self.config.dim**0.5, dtype=self.words.dtype).item()",
        "self.config.dim**0.5",
        "tests/models/paligemma/test_model.py",
    ),
]
