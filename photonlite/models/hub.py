"""Files of a Hugging Face Hub repository, from the cache or over the network.

`huggingface_hub` reads HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. It is imported only for Hub ids: the import is slow.
"""

from collections.abc import Sequence
from pathlib import Path

from photonlite.errors import ModelNotFoundError


def fetch(repo: str, names: Sequence[str], revision: str | None = None) -> Path:
    """Download files (names or patterns) of a repository's top folder; return the revision's folder in the Hub cache.

    Raises ModelNotFoundError if it does not exist, may not be read, or is not cached while the Hub is out of reach.
    """
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo, revision=revision, allow_patterns=list(names), ignore_patterns=["*/*"]
            )
        )
    except Exception as cause:
        # The network library below raises errors of its own, and has been replaced twice.
        raise ModelNotFoundError(_explain(cause, repo, revision)) from cause


def _explain(cause: Exception, repo: str, revision: str | None) -> str:
    from huggingface_hub import constants, errors

    which = repo if revision is None else f"{repo} at revision {revision}"
    uncached = f"there is no folder {repo} here, {which} is not in the Hub cache ({constants.HF_HUB_CACHE}), and"
    root = cause.__cause__ or cause
    reason = f"{type(root).__name__}: {root}".splitlines()[0]
    if isinstance(cause, errors.GatedRepoError):
        return (
            f"{repo} is gated: accept its terms on its Hub page, then set HF_TOKEN to a token of that account or run "
            "`hf auth login`"
        )
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"{repo} has no revision {revision!r}: give a branch, a tag or a full commit id that its Hub page lists"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return (
            f"there is no folder {repo} here, and no repository of that name on the Hub that this account may read: "
            "check the spelling; for a private one set HF_TOKEN or run `hf auth login`"
        )
    if isinstance(cause, errors.HFValidationError):
        return f"{repo} is neither a folder here nor a valid Hub id: {cause}"
    if constants.HF_HUB_OFFLINE:
        download = repo if revision is None else f"{repo} --revision {revision}"
        return (
            f"{uncached} HF_HUB_OFFLINE forbids fetching: unset that variable, or run `hf download {download}` "
            "where there is a network and copy the cache"
        )
    if isinstance(cause, errors.LocalEntryNotFoundError):
        return f"{uncached} the Hub cannot be reached ({reason}): check the network and try again"
    return f"{which} could not be fetched from the Hub ({reason}): check network, proxy and disk, try again"
