"""Requests to a hub through huggingface_hub, which is imported here alone and only when a hub's name was given.

Owns turning what that library raises into one line with a way out, and its progress into numbers.
Invariant: nothing is asked of a network where HF_HUB_OFFLINE is set, and nothing is printed.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, cast

from tqdm import tqdm

from plait.core.errors import ModelError
from plait.weights.gguf_header import shown
from plait.weights.hub_names import COMMIT, HubName

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

    _Bar = tqdm[NoReturn]
else:
    _Bar = tqdm

TIMEOUT_S: Final = 10.0
_LONGEST_REASON: Final = 160
_NO_SERVICE: Final = 500


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository's files at a commit."""

    commit: str
    sizes: Mapping[str, int]
    """Bytes, by name."""
    sha256s: Mapping[str, str]
    """Of large files."""


_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
"""Numbers of the operating system stand before its words, and say nothing to people."""


class Unreachable(Exception):
    """No answer, or none allowed; the text says why. What is in the cache may do."""


def list_files(name: HubName, revision: str) -> Listing:
    from huggingface_hub import HfApi

    with _trouble(name, revision):
        found = HfApi().model_info(name.repository, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
        files = found.siblings or []
        sizes = {file.rfilename: file.size or 0 for file in files}
        sha256s = {file.rfilename: file.lfs.sha256 for file in files if file.lfs is not None}
    commit = found.sha or ""
    if COMMIT.fullmatch(commit) is None:
        raise ModelError(
            f"{name.repository}: the hub calls its commit {shown(commit)}, which is none; check HF_ENDPOINT"
        )
    return Listing(commit, sizes, sha256s)


def download(name: HubName, file: str, commit: str, cache: Path, arrived: Callable[[int], None]) -> None:
    """Put one file into the cache; `arrived` is told how many of its bytes are there."""
    from huggingface_hub import hf_hub_download

    furthest = 0

    def tell(num_bytes: int) -> None:
        nonlocal furthest
        if num_bytes > furthest:
            furthest = num_bytes
            arrived(furthest)

    # Whatever can be called makes a bar.
    bar = cast("type[tqdm[str]]", functools.partial(_Counter, tell))
    try:
        with _trouble(name, commit, file):
            hf_hub_download(
                name.repository, file, revision=commit, cache_dir=cache, etag_timeout=TIMEOUT_S, tqdm_class=bar
            )
    except Unreachable as trouble:
        raise ModelError(
            f"{name.repository}: {file} did not arrive, {trouble}; run the same again, what has arrived whole is kept"
        ) from trouble


class _Counter(_Bar):
    """A bar that shows nothing and tells how far it is. The library may make two for one file, what arrived and what is
    written.
    """

    def __init__(self, tell: Callable[[int], None], *, initial: int = 0, **_: object) -> None:
        super().__init__(iter(()), disable=True)
        self._tell = tell
        self._arrived = initial

    def update(self, n: float | None = 1) -> bool | None:
        self._arrived += int(n or 0)
        self._tell(self._arrived)
        return None


@contextmanager
def _trouble(name: HubName, revision: str, file: str = "") -> Iterator[None]:
    """Everything that the library raises is one line; its own words on stderr are left out."""
    from huggingface_hub import errors

    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    where = f"{name.repository} on the hub"
    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise Unreachable("HF_HUB_OFFLINE is set") from None
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{where} is gated; accept its terms on its page there, and set HF_TOKEN to a token of that account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"there is no file or directory {name.repository} here, and the hub has no such model or keeps it "
            "private; check the name, or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{where} has no revision {shown(revision)}; give another --revision") from error
    except errors.LocalEntryNotFoundError as error:
        raise Unreachable(f"the hub does not answer ({_ERRNO.sub('', _reason(error.__cause__ or error))})") from error
    except errors.HfHubHTTPError as error:
        raise _answered(where, error) from error
    except errors.EntryNotFoundError as error:
        raise ModelError(f"{where} has no file {file}; give another --revision") from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # of the library's transport, whichever it is
        raise Unreachable(f"the hub does not answer ({_ERRNO.sub('', _reason(error))})") from error
    except OSError as error:
        raise ModelError(
            f"{where}: {file} cannot be fetched ({_reason(error)}); try again, or set HF_HOME to a folder "
            "with more space"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{where}: an answer that makes no sense ({_reason(error)}); check HF_ENDPOINT") from error
    finally:
        logger.setLevel(level)


def _answered(where: str, error: HfHubHTTPError) -> Exception:
    status = error.response.status_code
    if status >= _NO_SERVICE:
        return Unreachable(f"the hub answers {status}")
    if status == 404:
        return ModelError(
            f"{where}: the hub answers 404, as one that knows no such page; check the name and HF_ENDPOINT"
        )
    if status in (401, 403):
        return ModelError(f"{where}: the hub answers {status}; set HF_TOKEN to a token that is valid and may read it")
    return ModelError(f"{where}: the hub answers {status} ({_reason(error)}); try again later")


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."
