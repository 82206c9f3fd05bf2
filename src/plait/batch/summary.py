"""Summary: what a batch run did, for people and for programs.

Owns the closing numbers and their two forms. Measures nothing.
Invariant: completed + failed <= total, and equal if the run was not interrupted.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from plait.api.answers import Usage
from plait.api.bodies import JsonObject, JsonValue
from plait.metrics.drafts import DraftFigures


@dataclass(frozen=True, slots=True)
class Summary:
    """Lines count the whole job, with earlier runs; `run_usage`, of computed lines, and `duration_s` only this run."""

    output: str
    lines_total: int
    lines_completed: int
    lines_failed: int
    lines_resumed: int
    """Lines that earlier runs had recorded."""
    job_usage: Usage
    run_usage: Usage
    duration_s: float
    model: str
    fingerprint: str
    seed_policy: str
    warnings: tuple[str, ...] = ()
    limited_by: str | None = None
    """What kept the run from being faster, filled in by who watched the engine."""
    drafts: DraftFigures | None = None
    """What guesses came to, filled in by who watched the engine; None: nobody guesses."""
    is_rewritten: bool = False
    """The job was complete, but its output was missing or had been changed: it was made from the ledger again."""
    interrupted_by: signal.Signals | None = None
    strict: bool = False
    ordering_s: float = 0.0
    """Of the duration: until the order of the lines was found."""
    lines_folded: int = 0
    """Answered lines that asked for the same as another one and were told what it was told."""
    shard: str | None = None
    """The part of the input that the lines are, such as 1/4; None: all of it."""
    finish_by: str | None = None
    """When it should have ended, as text, if somebody said so."""
    early_s: float = 0.0
    """How long before that the run ended; below 0: after it."""

    @property
    def is_nothing_to_do(self) -> bool:
        """Everything was finished before."""
        return self.lines_resumed == self.lines_total and self.interrupted_by is None

    @property
    def exit_code(self) -> int:
        """0 unless interrupted: a failed line is an answer too. With --strict it is not."""
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return 1 if self.strict and self.lines_failed else 0

    @property
    def output_tokens_per_s(self) -> float:
        return self.run_usage.output_tokens / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def prefix_hit_fraction(self) -> float:
        """Share of this run's prompt tokens that were found in the prefix index."""
        prompt = self.run_usage.prompt_tokens
        return self.run_usage.cached_tokens / prompt if prompt else 0.0

    def json_object(self) -> JsonObject:
        warnings: list[JsonValue] = list(self.warnings)
        return {
            "output": self.output,
            "lines": {
                "total": self.lines_total,
                "completed": self.lines_completed,
                "failed": self.lines_failed,
                "resumed": self.lines_resumed,
                "folded": self.lines_folded,
            },
            "shard": self.shard,
            "run": {
                **_tokens(self.run_usage),
                "prefix_hit_fraction": self.prefix_hit_fraction,
                "duration_s": self.duration_s,
                "ordering_s": self.ordering_s,
                "output_tokens_per_s": self.output_tokens_per_s,
                "limited_by": self.limited_by,
                "drafts": None if self.drafts is None else {**self.drafts.json_object()},
            },
            "job": _tokens(self.job_usage),
            "model": self.model,
            "numerics_fingerprint": self.fingerprint,
            "seed_policy": self.seed_policy,
            "warnings": warnings,
            "output_rewritten": self.is_rewritten,
            "interrupted_by": self.interrupted_by.name if self.interrupted_by is not None else None,
            "finish_by": None if self.finish_by is None else {"moment": self.finish_by, "early_s": self.early_s},
        }

    def text(self) -> str:
        """A few lines for a terminal."""
        if self.is_nothing_to_do:
            return "\n".join([self._nothing_to_do_text(), *_table([("warning", text) for text in self.warnings])])
        rows = [("lines", self._lines_text()), ("prompt", self._prompt_text())]
        speed = f"{self.run_usage.output_tokens:,} tokens, {self.output_tokens_per_s:,.1f} a second"
        rows += [("output", speed), ("time", duration_text(self.duration_s))]
        if self.drafts is not None:
            rows.append(("drafts", self.drafts.text()))
        if self.finish_by is not None:
            rows.append(("finish by", f"{self.finish_by}: {self._early_text()}"))
        if self.limited_by is not None:
            rows.append(("limited by", self.limited_by))
        rows += [("numerics", self.fingerprint), ("seeds", self.seed_policy)]
        rows += [("warning", warning) for warning in self.warnings]
        if self.interrupted_by is not None:
            rows.append(("stopped", f"by {self.interrupted_by.name}; run the same command again to go on"))
        else:
            rows.append(("written", self.output))
        return "\n".join(_table(rows))

    def _nothing_to_do_text(self) -> str:
        if not self.lines_total:
            return f"nothing to do: the input holds no lines, so {self.output} is empty"
        if self.is_rewritten:
            return (
                f"nothing to run: all {self.lines_total} lines were finished ({self.lines_failed} failed); "
                f"{self.output} was missing or changed and was written again from the ledger"
            )
        return f"nothing to do: all {self.lines_total} lines are in {self.output} ({self.lines_failed} failed)"

    def _early_text(self) -> str:
        if self.interrupted_by is not None:
            return "stopped before it was done"
        return f"{duration_text(abs(self.early_s))} {'before it' if self.early_s >= 0 else 'after it'}"

    def _lines_text(self) -> str:
        finished = self.lines_completed + self.lines_failed
        text = f"{finished:,} of {self.lines_total:,} finished, {self.lines_failed:,} of them failed"
        text += f" ({self.lines_resumed:,} in earlier runs)" if self.lines_resumed else ""
        text += f"; {self.lines_folded:,} asked for what another line asked for" if self.lines_folded else ""
        return text if self.shard is None else f"{text}; shard {self.shard}"

    def _prompt_text(self) -> str:
        return f"{self.run_usage.prompt_tokens:,} tokens, {self.prefix_hit_fraction:.0%} found in the prefix index"


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return [f"{name:<11}{text}" for name, text in rows]


def _tokens(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_prompt_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


def duration_text(duration_s: float) -> str:
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
