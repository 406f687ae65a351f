"""Bugs to seed into photonlite/kernels/."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "scores of the ids before the mask",
        "kernels/sampling.py",
        "masked(wide(logits), masks).softmax(dim=-1)",
        "wide(logits).softmax(dim=-1)",
        "tests/kernels/test_sampling.py",
    ),
    Mutant(
        "a masked id can be chosen",
        "kernels/reference/sampling.py",
        "return torch.where(unpack_bits(masks, logits.shape[-1]), logits, -math.inf)",
        "return torch.where(unpack_bits(masks, logits.shape[-1]), logits, logits - 1)",
        "tests/runner/test_tokens.py",
    ),
    Mutant(
        "NaN of foreign pages reaches a result",
        "kernels/reference/attention.py",
        "return dequantise(found, dtype, scale).masked_fill(unseen[..., None, None], 0.0)",
        "return dequantise(found, dtype, scale)",
        "tests/runner/test_prefill.py tests/runner/test_torch_model_runner.py",
    ),
    Mutant(
        "on a CPU a row sees the rest of its last page",
        "kernels/host_attention.py",
        "slice(begin - skipped * page, end - skipped * page)",
        "slice(begin - skipped * page, None)",
        "tests/kernels/test_host_attention.py",
    ),
    Mutant(
        "on a CPU a row keeps all that was gathered for the one before",
        "kernels/host_attention.py",
        "        if one != other:\n            break\n",
        "        del one, other\n",
        "tests/kernels/test_host_attention.py",
    ),
    Mutant(
        "on a CPU a window begins where its page does",
        "kernels/host_attention.py",
        "slice(begin - skipped * page, ",
        "slice(0, ",
        "tests/kernels/test_host_attention.py",
    ),
    Mutant(
        "FP8 wraps where it should saturate",
        "kernels/reference/attention.py",
        "(x / scale).clamp(-largest, largest).to(FP8)",
        "(x / scale).fmod(largest).to(FP8)",
        "tests/kernels/test_paged_attention.py",
    ),
    Mutant(
        "engines on one card count arrivals together",
        "kernels/triton_utils.py",
        "    token = _counters.set(counters)\n",
        "    token = _counters.set(_shared)\n",
        "tests/kernels/test_small_batch_gemm.py",
    ),
    Mutant(
        "a new position does not see itself",
        "kernels/reference/attention.py",
        "(q, keys, values, page_table, positions + 1, ",
        "(q, keys, values, page_table, positions, ",
        "tests/kernels/test_decode_attention.py",
    ),
]
