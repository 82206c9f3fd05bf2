"""N-grams: the native window in which an n-gram drafter looks.

Owns nothing but the way to it: drafters are the control plane's, which knows no native runtime and is given this
(`plait.draft.ngram.NgramDrafts`). Invariant: it answers as `plait.draft.window.NgramWindow` does.
"""

from __future__ import annotations

from plait import _native


def native_window(most_tokens: int, most_at_once: int) -> _native.NgramWindow:
    """Empty. `most_tokens`: of the window, even; `most_at_once`: tokens that a call adds to automata, 2 at least."""
    return _native.NgramWindow(most_tokens, most_at_once)
