"""Trace requests: what a line of any trace comes to.

Owns `TraceRequest`, its limits and its scaling. Knows no file and no model.
Invariant: lengths are at least 1; `blocks` cover no more than the prompt has room for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from plait.core.errors import UsageError

MAX_TOKENS = 1 << 30
"""Of one request; a larger number in a file is a slip."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: lengths in tokens, and when it comes.

    `at_s`: seconds from the start; None: the file does not say. A request with `think_s` comes so long after the answer
    to the one before it in its `session`, whose requests stand together; its `at_s` is None.
    """

    at_s: float | None
    num_prompt: int
    num_output: int
    blocks: tuple[int, ...] = ()
    """Names of the blocks of `block_tokens` tokens that the prompt begins with; equal beginnings are equal text."""
    block_tokens: int = 0
    client: str = ""
    session: str = ""
    think_s: float | None = None

    def divided(self, divisor: int) -> TraceRequest:
        """Every length divided, upwards, so that nothing vanishes; what is shared stays the same share."""
        if divisor == 1:
            return self
        if self.block_tokens % divisor:
            raise UsageError(
                f"--length-divisor is {divisor}, but the blocks of this trace have {self.block_tokens} tokens; choose "
                "a divisor of that"
            )
        return replace(
            self,
            num_prompt=-(-self.num_prompt // divisor),
            num_output=-(-self.num_output // divisor),
            block_tokens=self.block_tokens // divisor,
        )
