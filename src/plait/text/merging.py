"""Merging: the border to the `tokenizers` library, which does the work inside words.

Owns building its tokenizers and calling them. Knows nothing about control tokens. Invariant: whatever goes wrong
inside the library, its panics included, leaves here as a `PlaitError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tokenizers import Tokenizer as Backend

from plait.core.errors import ModelError, PlaitError, RequestError
from plait.text.alphabet import lone_surrogate

_MOST_TROUBLE_SHOWN = 200
_PREFACE = "Cannot instantiate Tokenizer from buffer: "


def build_backend(described: bytes, source: str) -> Backend:
    """The tokenizer that `described`, a document in the library's own format, describes; `source` is for errors."""

    def refused(trouble: str) -> ModelError:
        return ModelError(f"{source}: the tokenizer cannot be built: {trouble}; get the file again")

    with library_errors(refused):
        return Backend.from_buffer(described)


def merge(backend: Backend, texts: Sequence[str]) -> list[list[int]]:
    """The ids of every text, without what a model wants around it."""
    refuse_lone_surrogates(texts)
    if not texts:
        return []

    def refused(trouble: str) -> RequestError:
        return RequestError(f"the model's tokenizer cannot cut this text: {trouble}; shorten its longest runs")

    # The batch call releases the interpreter lock, the call for a single text does not; "fast" leaves out offsets.
    with library_errors(refused):
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def refuse_lone_surrogates(texts: Sequence[str]) -> None:
    for text in texts:
        if lone := lone_surrogate(text):
            raise RequestError(f"the text contains the lone surrogate {lone}, which is no character; remove it")


@contextmanager
def library_errors(refused: Callable[[str], PlaitError]) -> Iterator[None]:
    """What the library raises becomes an error of ours."""
    try:
        yield
    except BaseException as trouble:
        if not _is_from_library(trouble):
            raise
        shown = " ".join(str(trouble).removeprefix(_PREFACE).split())[:_MOST_TROUBLE_SHOWN]
        raise refused(shown or type(trouble).__name__) from trouble


def _is_from_library(trouble: BaseException) -> bool:
    """It raises `Exception` itself or `ValueError`; a panic in its Rust code is not even an `Exception`."""
    return type(trouble) in (Exception, ValueError) or type(trouble).__name__ == "PanicException"
