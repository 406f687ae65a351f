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
        "parent = text_root(sequence.cache_salt)",
        "parent = text_root()",
        SIMULATION,
    ),
    Mutant(
        "prompts in both directions share an image's pages",
        "cache/manager.py",
        "key = page_key(text_root(sequence.cache_salt), tokens, images)",
        "key = page_key(text_root(sequence.cache_salt), tokens[:0], images)",
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
        "the host keeps the oldest embeddings",
        "cache/store/memory.py",
        "popitem(last=False)",
        "popitem()",
        "tests/cache/store",
    ),
    Mutant(
        "embeddings that are used are evicted as others are",
        "cache/store/memory.py",
        "                self._images.move_to_end(key)\n",
        "                pass\n",
        "tests/cache/store",
    ),
    Mutant(
        "embeddings that take another's place are counted with it",
        "cache/store/memory.py",
        "                self.bytes -= old.data.nbytes\n",
        "                pass\n",
        "tests/cache/store",
    ),
]
