"""Progress: the bar of a call, on stderr, with tokens per second in and out, as in vLLM.

Owns the drawing. Without a bar wanted, every call does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tqdm.auto import tqdm


class BarLike(Protocol):
    """As much of a tqdm bar as is used."""

    @property
    def format_dict(self) -> dict[str, float]:
        """`elapsed` is in it."""

    def set_postfix_str(self, s: str, refresh: bool = ...) -> None: ...
    def update(self, n: float | None = ...) -> bool | None: ...
    def close(self) -> None: ...


BarFactory = Callable[..., BarLike]
UseTqdm = bool | BarFactory


class Progress:
    """`use_tqdm`: whether a bar is drawn, or what makes it."""

    def __init__(self, use_tqdm: UseTqdm, num_requests: int, what: str) -> None:
        self._bar: BarLike | None = None
        self._num_in = self._num_out = 0
        if use_tqdm and num_requests:
            make: BarFactory = tqdm if use_tqdm is True else use_tqdm  # type: ignore[assignment]  # what is not a bool
            self._bar = make(total=num_requests, desc=what, dynamic_ncols=True, postfix=_speeds(0.0, 0.0))

    def finished(self, num_in: int, num_out: int) -> None:
        """One more request, of so many prompt and output tokens."""
        bar = self._bar
        if bar is None:
            return
        self._num_in += num_in
        self._num_out += num_out
        elapsed_s = bar.format_dict["elapsed"]
        if elapsed_s > 0:
            bar.set_postfix_str(_speeds(self._num_in / elapsed_s, self._num_out / elapsed_s), refresh=False)
        bar.update(1)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _speeds(in_per_s: float, out_per_s: float) -> str:
    return f"in: {in_per_s:.2f} tok/s, out: {out_per_s:.2f} tok/s"
