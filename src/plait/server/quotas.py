"""Quotas: how much of the server one key may use.

Owns what every key with limits has in flight and has used of its minute. Knows no route and no engine.
Invariants: what was taken is given back when its request ends, however it ends; one key's limits never refuse another.

A minute is a bucket that is full at the start and fills evenly. Who asks for more than a whole bucket is let in when it
is full, and others of the key wait until it has filled up again: no request waits for ever. Output tokens are taken as
they come, so a bucket may go below nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from plait.api.calls import Call
from plait.core.errors import RequestError

MINUTE_S = 60.0
WAIT_S = 1.0
"""Who has too much in flight may ask again so soon: nobody knows when an answer ends."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one key; None: no limit of that kind."""

    requests: int | None = None
    """In flight at once."""
    tokens: int | None = None
    """Of prompts and of answers at their longest, in flight at once."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts, cached ones too, and of answers as they come."""
    batches: int | None = None
    """That are not finished. What their lines use is not counted elsewhere: they run when nobody else wants to."""
    batch_lines: int | None = None
    """Of all batches that are not finished together."""
    batch_tokens: int | None = None
    """Prompt tokens of all of them; counted when a batch is validated."""


@dataclass(slots=True, eq=False)
class _Bucket:
    per_minute: int
    level: float
    filled_s: float

    def fill(self, now: float) -> None:
        self.level = min(self.per_minute, self.level + (now - self.filled_s) * self.per_minute / MINUTE_S)
        self.filled_s = now

    def lacks_s(self, amount: float) -> float:
        """Until so much may be taken; 0: now."""
        return max(0.0, (min(amount, self.per_minute) - self.level) * MINUTE_S / self.per_minute)


class Account:
    """What one key uses. From one event loop."""

    def __init__(self, quota: Quota, now: Callable[[], float], refuse: Callable[[str], None]) -> None:
        self._quota = quota
        self._now = now
        self._refuse = refuse
        self._num_requests = 0
        self._num_tokens = 0
        self._requests, self._tokens = (
            None if limit is None else _Bucket(limit, float(limit), now())
            for limit in (quota.requests_per_minute, quota.tokens_per_minute)
        )

    @contextmanager
    def request(self) -> Iterator[Taken]:
        """One more request, or `RequestError` 429."""
        limit, bucket = self._quota.requests, self._requests
        if limit is not None and self._num_requests >= limit:
            raise self._full(f"requests={limit}", f"{self._num_requests} requests of this key are in flight", WAIT_S)
        if bucket is not None:
            bucket.fill(self._now())
            if lacks_s := bucket.lacks_s(1):
                raise self._full(f"requests/minute={bucket.per_minute}", "this key has sent too many", lacks_s)
            bucket.level -= 1
        taken = Taken(self)
        self._num_requests += 1
        try:
            yield taken
        finally:
            self._num_requests -= 1
            self._num_tokens -= taken.num_tokens

    def take(self, taken: Taken, num_prompt: int, num_tokens: int) -> None:
        """A request has so many prompt tokens, and so many with its answers at their longest; or `RequestError` 429."""
        limit, bucket = self._quota.tokens, self._tokens
        if limit is not None and self._num_tokens and self._num_tokens + num_tokens > limit:
            used = f"{self._num_tokens:,} tokens of this key are in flight and this asks for {num_tokens:,}"
            raise self._full(f"tokens={limit}", used, WAIT_S)
        if bucket is not None:
            bucket.fill(self._now())
            if lacks_s := bucket.lacks_s(num_prompt):
                left = f"{max(0, int(bucket.level)):,} tokens are left to this key and the prompt has {num_prompt:,}"
                raise self._full(f"tokens/minute={bucket.per_minute}", left, lacks_s)
            bucket.level -= num_prompt
        taken.num_tokens = num_tokens
        self._num_tokens += num_tokens

    def came(self, num_tokens: int) -> None:
        if self._tokens is not None:
            self._tokens.level -= num_tokens

    @property
    def batch_lines(self) -> int | None:
        return self._quota.batch_lines

    @property
    def batch_tokens(self) -> int | None:
        return self._quota.batch_tokens

    def check_batches(self, num_unfinished: int, queued_lines: int = 0, more_lines: int = 0) -> None:
        """`RequestError` 429 for one more batch than this key may have, or for one of `more_lines` where unfinished
        ones have so many.
        """
        limit, lines = self._quota.batches, self._quota.batch_lines
        if limit is not None and num_unfinished >= limit:
            raise self._full(f"batches={limit}", f"{num_unfinished} batches of this key are not finished", MINUTE_S)
        if lines is not None and more_lines > lines:
            # No waiting helps.
            raise RequestError(
                f"the input file has {more_lines:,} lines and this key may have batch-lines={lines} in all; split it",
                param="input_file_id",
                code="batch_too_large",
            )
        if lines is not None and queued_lines + more_lines > lines:
            have = f"unfinished batches of this key have {queued_lines:,} lines and this one has {more_lines:,}"
            raise self._full(f"batch-lines={lines}", have, MINUTE_S)

    def _full(self, limit: str, why: str, after_s: float) -> RequestError:
        self._refuse("key_quota")
        return RequestError(
            f"{why}; its limit is {limit}: try again in {after_s:.0f} s"
            if after_s >= 1
            else f"{why}; its limit is {limit}: try again soon",
            status=429,
            kind="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after_s=after_s,
        )


@dataclass(slots=True, eq=False)
class Taken:
    """What one request has of its key's account."""

    account: Account
    num_tokens: int = 0

    def asked(self, call: Call, max_model_tokens: int) -> None:
        """The request is known now; `RequestError` 429 where it is too much for the key."""
        prompts = [len(one.prompt) for one in call.requests]
        answers = 0
        for num_prompt, one in zip(prompts, call.requests, strict=True):
            room = max_model_tokens - num_prompt
            limit = room if one.sampling.max_tokens is None else one.sampling.max_tokens
            answers += one.n * limit if call.vectors is None else 0
        self.account.take(self, sum(prompts), sum(prompts) + answers)

    def came(self, num_tokens: int) -> None:
        """So many output tokens more."""
        self.account.came(num_tokens)


@dataclass(slots=True)
class Quotas:
    """Accounts by tenant. A tenant without a quota may use what the server has."""

    accounts: Mapping[str, Account] = field(default_factory=dict)

    @contextmanager
    def request(self, tenant: str) -> Iterator[Taken | None]:
        account = self.accounts.get(tenant)
        if account is None:
            yield None
            return
        with account.request() as taken:
            yield taken

    def check_batches(self, tenant: str, num_unfinished: int, queued_lines: int = 0, more_lines: int = 0) -> None:
        account = self.accounts.get(tenant)
        if account is not None:
            account.check_batches(num_unfinished, queued_lines, more_lines)

    def batch_limits(self, tenant: str) -> tuple[int | None, int | None]:
        """Lines and prompt tokens that unfinished batches may have together."""
        account = self.accounts.get(tenant)
        return (None, None) if account is None else (account.batch_lines, account.batch_tokens)
