"""Bugs to seed into photonlite/images/."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "decoding: the header of an image may take any CPU time",
        "images/isolation/worker.py",
        "    limit_cpu(limits.decode_cpu_s)\n",
        "",
        "tests/images/isolation/test_process.py -m long",
    ),
    Mutant(
        "decoding: pixels may take any CPU time",
        "images/isolation/worker.py",
        "            limit_cpu(max(0.001, allowed - spent))\n",
        "",
        "tests/images/isolation/test_process.py -m long",
    ),
    Mutant(
        "decoding: memory is taken before it is admitted",
        "images/isolation/process.py",
        "                admit(needed)\n",
        "                pass\n",
        "tests/images/isolation/test_process.py",
    ),
    Mutant(
        "decoding: a slow image keeps its place",
        "images/isolation/process.py",
        "            self._on_slow()\n",
        "",
        "tests/images/isolation/test_pool.py -m long",
    ),
    Mutant(
        "decoding: a cancelled image keeps its worker",
        "processes/pool.py",
        "            if job in self._serving:\n                self._serving[job].kill()\n",
        "            pass\n",
        "tests/images/isolation/test_pool.py",
    ),
    Mutant(
        "deadline: decoding goes on after it",
        "images/pool.py",
        "        checkpoint()\n        pixels",
        "        pixels",
        "tests/images/test_pool.py",
    ),
    Mutant(
        "threads: an urgent job is left where every thread is busy",
        "images/pool.py",
        "        self.submit(lambda: None)\n",
        "",
        "tests/engine/test_interleavings.py",
    ),
    Mutant(
        "URLs: where a host redirects to is not checked",
        "images/fetch.py",
        "                parts = check_url(url, hosts)\n",
        "                parts = check_url(url, hosts) if left == redirects else urlsplit(url)\n",
        "tests/images/test_fetch.py",
    ),
    Mutant(
        "URLs: one public address is enough",
        "images/fetch.py",
        "not all(map(is_public, addresses))",
        "not any(map(is_public, addresses))",
        "tests/images/test_fetch.py",
    ),
    Mutant(
        "URLs: any model fetches them",
        "api/session.py",
        "ImageFetcher(limits.max_bytes) if allow_urls else None",
        "ImageFetcher(limits.max_bytes)",
        "tests/images/test_fetch.py",
    ),
    Mutant(
        "tensors: channels last where both ends may be channels",
        "images/tensors.py",
        "if first else array",
        "if first and not last else array",
        "tests/images/test_tensors.py",
    ),
    Mutant(
        "what is stored of an image is not asked for",
        "images/pool.py",
        "self.pool.load_stored(stored_as, self.cache_salt, self.size, pages) or self._cut_now()",
        "self._cut_now()",
        "tests/images/test_pool.py",
    ),
    Mutant(
        "images that are stored are packed too",
        "images/pool.py",
        "None if expected else self._pack_ahead",
        "self._pack_ahead",
        "tests/images/test_pool.py",
    ),
]
