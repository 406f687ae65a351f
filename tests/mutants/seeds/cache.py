"""Bugs to seed into photonlite/cache/."""

from tests.mutants.mutant import SIMULATION, Mutant

MUTANTS = [
    Mutant(
        "page leaked: the last one stays",
        "cache/manager.py",
        "        self.pages.release(sequence.pages)\n",
        "        self.pages.release(sequence.pages[:-1])\n",
        "tests/cache",
    ),
    Mutant(
        "blocks in use are not counted as used",
        "cache/pages.py",
        "            block.users += 1\n",
        "",
        "tests/cache",
    ),
    Mutant(
        "images are told apart by nothing",
        "cache/pages.py",
        "return blake2b(_bytes(image), digest_size",
        "return blake2b(_bytes(image[:0]), digest_size",
        "tests/cache",
    ),
    Mutant(
        "tenants: prompts without an image are shared",
        "cache/manager.py",
        "parent = _root(sequence)",
        "parent = text_root()",
        SIMULATION,
    ),
    Mutant(
        "prompts in both directions share an image's pages",
        "cache/manager.py",
        "key = page_key(_root(sequence), tokens, images)",
        "key = page_key(_root(sequence), tokens[:0], images)",
        SIMULATION,
    ),
    Mutant(
        "an answer that ends in a run is kept with pages that no step has computed",
        "cache/manager.py",
        "sequence.num_committed_tokens + 1, size)",
        "sequence.num_tokens, size)",
        "tests/cache/test_manager.py",
    ),
    Mutant(
        "adapters: texts share what was computed for another one",
        "cache/manager.py",
        "return text_root(sequence.cache_salt, sequence.adapter_key)",
        "return text_root(sequence.cache_salt)",
        "tests/cache/test_manager.py",
    ),
]
