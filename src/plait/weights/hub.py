"""Models on a hub, fetched once through huggingface_hub into its own cache.

Owns the order of the requests, falling back to what is cached, and the wording of trouble. The library reads
HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE, keeps the cache and takes up broken transfers.
Invariant: a file that comes out lies in its repository's folder of the cache, links followed, and weights had the
checksum that the hub names for them when they arrived.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from plait.core.errors import ModelError
from plait.weights.checksum import noted_sha256
from plait.weights.download import Progress
from plait.weights.found import ModelFile
from plait.weights.gguf_header import shown
from plait.weights.hf_layout import INDEX, shard_of_tensors
from plait.weights.hub_cache import DEFAULT_REVISION, Snapshot, commit_in_cache
from plait.weights.hub_names import HubName, check_revision, model_files_of
from plait.weights.hub_requests import Listing, Unreachable, download, list_files


def fetch_model(name: HubName, revision: str | None, cache: Path, notes: Path, progress: Progress) -> ModelFile:
    """The named model in the cache, fetched there as far as it is not: only the files that it is read from. `notes` is
    the folder in which checksums are noted.
    """
    asked = check_revision(revision or DEFAULT_REVISION)
    try:
        listing = list_files(name, asked)
    except Unreachable as trouble:
        return _cached(name, asked, cache, str(trouble))
    snapshot = Snapshot.of(name, listing.commit, cache)
    wanted = model_files_of(name, listing.sizes, f"{name.repository} on the hub")
    _fetch(snapshot, listing, wanted.texts, notes, lambda arrived, total: None)
    weights = wanted.weights or tuple(dict.fromkeys(shard_of_tensors(snapshot.file(INDEX)).values()))
    _fetch(snapshot, listing, weights, notes, progress)
    snapshot.note(asked)
    return ModelFile(snapshot.folder / wanted.opened, name.text, None)


def _cached(name: HubName, revision: str, cache: Path, trouble: str) -> ModelFile:
    commit = commit_in_cache(name, revision, cache)
    snapshot = Snapshot.of(name, commit or "", cache)
    files = snapshot.files() if commit is not None else []
    if not files:
        raise ModelError(
            f"{name.text}: not in {cache} and {trouble}; fetch it where there is a network, or give a path"
        )
    try:
        wanted = model_files_of(name, files, str(snapshot.folder))
        shards = () if wanted.weights else shard_of_tensors(snapshot.file(INDEX)).values()
        for file in (*wanted.texts, *wanted.weights, *dict.fromkeys(shards)):
            snapshot.file(file)
    except ModelError as error:
        raise ModelError(f"{name.text}: not whole in the cache, and {trouble} ({error})") from error
    note = f"{trouble}: {name.text} is the commit {snapshot.commit[:12]} of the cache"
    return ModelFile(snapshot.folder / wanted.opened, name.text, None, (note,))


def _fetch(snapshot: Snapshot, listing: Listing, files: Collection[str], notes: Path, progress: Progress) -> None:
    """What is there already costs no request."""
    unknown = [file for file in files if file not in listing.sizes]
    if unknown:
        raise ModelError(
            f"{snapshot.name.repository} on the hub has no file {shown(unknown[0])} though {INDEX} names it; take "
            "another --revision"
        )
    missing = [file for file in files if not (snapshot.folder / file).exists()]
    total, before = sum(listing.sizes[file] for file in missing), 0
    for file in missing:

        def tell(arrived: int, before: int = before) -> None:
            progress(min(before + arrived, total), total)

        download(snapshot.name, file, snapshot.commit, snapshot.repository.parent, tell)
        _check(snapshot, file, listing, notes)
        before += listing.sizes[file]
        progress(before, total)
    for file in files:
        snapshot.file(file)


def _check(snapshot: Snapshot, file: str, listing: Listing, notes: Path) -> None:
    """What has just arrived is what the hub said it is; what is not is removed, so that the next attempt fetches it."""
    path = snapshot.file(file)
    held, expected = path.stat().st_size, listing.sizes[file]
    told = listing.sha256s.get(file)
    if held == expected and (told is None or noted_sha256(path, notes) == told):
        return
    what = f"has {held:,} bytes, not {expected:,}" if held != expected else f"has not the sha256 {told}"
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    raise ModelError(f"{snapshot.name.repository}: {file} {what} that the hub names; it was removed, fetch it again")
