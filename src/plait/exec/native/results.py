"""Results: what the runtime reports of a step, as the engine's types.

Owns the texts of failures, which are those of the reference executor. Knows neither lanes nor the runtime.
"""

from __future__ import annotations

from plait import _native
from plait.core.step import Chunk, SeqResult, SeqStatus, StepPlan, StepResult, StepStatus, TokenLogprob

OK, CANCELLED, NOT_A_NUMBER, POOL_NOT_A_NUMBER = 0, 1, 2, 4
"""Values of ChunkStatus in csrc/runtime/runtime.h; what is left is that no token could be chosen."""


def step_result(plan: StepPlan, report: _native.StepReport) -> StepResult:
    _, _, start_s, end_s, workers, chunks = report
    seqs = tuple([_seq_result(chunk, one) for chunk, one in zip(plan.chunks, chunks, strict=True)])
    # Nearly always the first one says no.
    dead = bool(seqs) and all(one.status is SeqStatus.CANCELLED for one in seqs)
    status = StepStatus.CANCELLED if dead else StepStatus.COMPLETED
    return StepResult(plan.step, plan.lane, status, start_s, end_s, workers, seqs)


def _seq_result(chunk: Chunk, report: _native.ChunkReport) -> SeqResult:
    status, failed_row, tokens, logprobs, scored, pooled = report
    if status == OK:
        if not logprobs and not scored and pooled is None and chunk.drafts is None:
            return SeqResult.of_tokens(chunk.seq, chunk.num_tokens, tokens)
        # Behind the last draft that was accepted comes one more token.
        num_accepted = 0 if chunk.drafts is None else len(tokens) - 1
        return SeqResult(
            chunk.seq,
            SeqStatus.OK,
            chunk.num_tokens - chunk.num_drafts + num_accepted,
            tokens,
            _logprobs(logprobs),
            prompt_logprobs=_logprobs(scored),
            num_accepted=num_accepted,
            pooled=pooled,
        )
    if status == CANCELLED:
        return SeqResult(chunk.seq, SeqStatus.CANCELLED)
    behind = f"behind token {failed_row} of the sequence"
    if status == NOT_A_NUMBER:
        error = f"the model gave a logit that is not a number {behind}"
    elif status == POOL_NOT_A_NUMBER:
        error = f"the model gave a hidden state that is not a number up to token {failed_row} of the sequence"
    else:
        error = f"bias, penalties and masks leave no token to choose {behind}"
    return SeqResult(chunk.seq, SeqStatus.FAILED, error=error)


def _logprobs(reports: tuple[_native.LogprobReport, ...]) -> tuple[TokenLogprob, ...]:
    return tuple([TokenLogprob(*report) for report in reports])
