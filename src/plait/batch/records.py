"""Records: files and batches as clients of the OpenAI API see them.

Owns the states of a batch and which follow which, and the JSON of both objects. Touches no disk.
Invariant: a batch in a final state never changes again; every timestamp is set once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Endpoint
from plait.batch.finish_by import Outlook
from plait.core.errors import InvariantError


class BatchState(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in _FINAL


_FINAL = (BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED)
_NEXT: Mapping[BatchState, tuple[BatchState, ...]] = {
    BatchState.VALIDATING: (BatchState.IN_PROGRESS, BatchState.FAILED, BatchState.CANCELLING, BatchState.EXPIRED),
    BatchState.IN_PROGRESS: (
        BatchState.FINALIZING,
        BatchState.FAILED,
        BatchState.CANCELLING,
        BatchState.EXPIRED,
    ),
    BatchState.FINALIZING: (BatchState.COMPLETED, BatchState.FAILED),
    BatchState.CANCELLING: (BatchState.CANCELLED, BatchState.FAILED),
}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a client uploaded, or that a batch made. Times are Unix seconds."""

    id: str
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None

    def body(self) -> JsonObject:
        told: JsonObject = {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }
        # In OpenAI's description this is a number where it is there, and never null.
        return told if self.expires_at is None else {**told, "expires_at": self.expires_at}


@dataclass(frozen=True, slots=True)
class BatchFault:
    """Why a whole batch failed."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch, as far as it has come."""

    id: str
    tenant: str
    input_file_id: str
    endpoint: Endpoint
    completion_window: str
    created_at: int
    expires_at: int
    state: BatchState = BatchState.VALIDATING
    output_expires_after_s: int | None = None
    metadata: Mapping[str, str] | None = None
    model: str | None = None
    faults: tuple[BatchFault, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    num_total: int = 0
    num_completed: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    left_s: float | None = None
    """Estimated seconds to the end."""
    finish_by: int | None = None
    """When somebody wants it, before it expires."""
    outlook: str | None = None
    """Whether it will have ended by then: one of `plait.batch.finish_by.Outlook`."""
    queued_lines: int = 0
    queued_tokens: int = 0
    """Lines and prompt tokens that count against limits of its key, where it has some, until it has ended."""
    max_queued_tokens: int | None = None
    """Of all unfinished batches of its key together."""
    moments: Mapping[str, int] = field(default_factory=dict)
    """State -> when it was reached."""

    def moved(self, state: BatchState, now: int) -> BatchRecord:
        """The same in another state."""
        if state not in _NEXT.get(self.state, ()):
            raise InvariantError(f"batch {self.id} goes from {self.state} to {state}")
        return replace(self, state=state, moments={**self.moments, state.value: now}, left_s=None)

    def counted_as(self, other: BatchRecord) -> BatchRecord:
        """The same with the counts of another moment."""
        return replace(
            self,
            num_completed=other.num_completed,
            num_failed=other.num_failed,
            prompt_tokens=other.prompt_tokens,
            cached_tokens=other.cached_tokens,
            output_tokens=other.output_tokens,
        )

    @property
    def told_outlook(self) -> str | None:
        """Of a batch that was completed, whether it was in time: an estimate says no more then."""
        ended = self.moments.get(BatchState.COMPLETED.value)
        if self.finish_by is None or ended is None:
            return self.outlook
        return (Outlook.IN_TIME if ended <= self.finish_by else Outlook.LATE).value

    def body(self) -> JsonObject:
        errors: JsonObject | None = None
        if self.faults:
            data: list[JsonValue] = [
                {"code": one.code, "message": one.message, "line": one.line, "param": one.param} for one in self.faults
            ]
            errors = {"object": "list", "data": data}
        moment = self.moments.get
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint.value,
            "model": self.model,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.state.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": moment("in_progress"),
            "expires_at": self.expires_at,
            "finalizing_at": moment("finalizing"),
            "completed_at": moment("completed"),
            "failed_at": moment("failed"),
            "expired_at": moment("expired"),
            "cancelling_at": moment("cancelling"),
            "cancelled_at": moment("cancelled"),
            "request_counts": {
                "total": self.num_total,
                "completed": self.num_completed,
                "failed": self.num_failed,
            },
            "usage": {
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.prompt_tokens + self.output_tokens,
            },
            "estimated_seconds_left": None if self.left_s is None else round(self.left_s, 1),
            "finish_by": self.finish_by,
            "finish_by_outlook": self.told_outlook,
            "metadata": None if self.metadata is None else dict(self.metadata),
        }
