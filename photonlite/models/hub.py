"""Files of a Hub repository, from its cache on this machine or over the network.

`huggingface_hub` itself reads HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. It is imported when a Hub id is first resolved:
a local checkpoint needs neither the package nor its start-up time.
"""

from collections.abc import Sequence
from pathlib import Path

from photonlite.errors import ModelNotFoundError


def fetch(repo: str, names: Sequence[str], revision: str | None = None) -> Path:
    """Download files of a repository's top folder; return the folder of the revision in the Hub cache.

    `names` are file names or patterns, `revision` a branch, tag or commit; None is the main branch.

    Raises:
        ModelNotFoundError: The repository or revision does not exist or may not be read, or it is not in the cache and
            the Hub cannot be reached.
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
        raise _explain(cause, repo, revision) from cause


def _explain(cause: Exception, repo: str, revision: str | None) -> ModelNotFoundError:
    from huggingface_hub import constants, errors

    which = repo if revision is None else f"{repo} at revision {revision}"
    download = repo if revision is None else f"{repo} --revision {revision}"
    if isinstance(cause, errors.GatedRepoError):
        text = (
            f"{repo} is gated: accept its terms on its Hub page, then set HF_TOKEN to a token of that account or run "
            "`hf auth login`"
        )
    elif isinstance(cause, errors.RevisionNotFoundError):
        text = f"{repo} has no revision {revision!r}: give a branch, a tag or a full commit id that its Hub page lists"
    elif isinstance(cause, errors.RepositoryNotFoundError):
        text = (
            f"there is no folder {repo} here, and no repository of that name on the Hub that this account may read: "
            "check the spelling; for a private one set HF_TOKEN or run `hf auth login`"
        )
    elif isinstance(cause, errors.HFValidationError):
        text = f"{repo} is neither a folder here nor a valid Hub id: {cause}"
    elif constants.HF_HUB_OFFLINE:
        text = (
            f"there is no folder {repo} here, {which} is not in the Hub cache ({constants.HF_HUB_CACHE}), and "
            f"HF_HUB_OFFLINE forbids fetching: unset that variable, or run `hf download {download}` "
            "where there is a network and copy the cache"
        )
    elif isinstance(cause, errors.LocalEntryNotFoundError):
        text = (
            f"there is no folder {repo} here, {which} is not in the Hub cache ({constants.HF_HUB_CACHE}), and the Hub "
            f"cannot be reached ({_reason(cause)}): check the network and try again"
        )
    else:
        text = f"{which} could not be fetched from the Hub ({_reason(cause)}): check network, proxy and disk, try again"
    return ModelNotFoundError(text)


def _reason(cause: Exception) -> str:
    root = cause.__cause__ or cause
    return f"{type(root).__name__}: {root}".splitlines()[0]
