"""A scheduler on stage: a tiny memory, and a device that answers every plan with tokens that are easy to foretell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.unit.kv.kit import make_kv

from plait.core.decision import Cancel, SeqUpdate, Submit
from plait.core.events import Event
from plait.core.ids import RequestId, SeqId
from plait.core.request import NO_SLO, Request, ServiceClass, Slo
from plait.core.request import Sequence as Seq
from plait.core.sampling import SamplingParams
from plait.core.step import Chunk, OutputKind, SeqResult, SeqStatus, StepPlan, StepResult, StepStatus
from plait.cost.model import CostModel
from plait.kv.cache import KVCache
from plait.sched.chunked import ChunkedConfig, ChunkedScheduler
from plait.sched.colocation.policy import ColocationConfig
from plait.sched.lives import LivesConfig

EOS = 9_999


def next_token(chunk: Chunk) -> int:
    """The device's answer: 1,000 plus the position of the new token."""
    return 1_000 + chunk.end


class Stage:
    """Plays the engine and the device. `num_blocks` blocks are all there is, of four tokens unless said otherwise."""

    def __init__(
        self,
        *,
        num_blocks: int = 32,
        max_step_tokens: int = 16,
        max_rows: int = 4,
        enable_prefix: bool = True,
        queue_depth: int = 1,
        tokens_per_block: int = 4,
        answer: Callable[[Chunk], int] = next_token,
        colocation: ColocationConfig | None = None,
        cost: CostModel | None = None,
        seconds: Callable[[StepPlan], float] = lambda plan: 1.0,
    ) -> None:
        self.kv: KVCache = make_kv(num_blocks, tokens_per_block=tokens_per_block, enable_prefix=enable_prefix)
        self.events: list[Event] = []
        lives = LivesConfig(
            max_rows=max_rows,
            max_model_tokens=64,
            fingerprint="test",
            eos_token_ids=(EOS,),
            enable_prefix=enable_prefix,
        )
        config = ChunkedConfig(lives, max_step_tokens, queue_depth=queue_depth, colocation=colocation, cost=cost)
        self.scheduler = ChunkedScheduler(config, self.kv, self.events.append)
        self.now = 0.0
        self.plans: list[StepPlan] = []
        self.updates: list[SeqUpdate] = []
        self.cancels: list[Cancel] = []
        self.sequences: dict[SeqId, Seq] = {}
        self._answer = answer
        self._seconds = seconds
        self._next = 0

    def arrive(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 4,
        sampling: SamplingParams | None = None,
        service_class: ServiceClass = ServiceClass.ONLINE,
        priority: int = 0,
        deadline_s: float | None = None,
        cache_prefix: bool = True,
        tenant: str = "",
        slo: Slo = NO_SLO,
        is_urgent: bool = False,
    ) -> Seq:
        sampling = sampling or SamplingParams(max_tokens=max_tokens)
        request = Request(
            id=RequestId(f"r{self._next}"),
            prompt=tuple(prompt),
            sampling=sampling,
            service_class=service_class,
            priority=priority,
            deadline_s=deadline_s,
            cache_prefix=cache_prefix,
            tenant=tenant,
            slo=slo,
            is_urgent=is_urgent,
        )
        seq = Seq(SeqId(self._next), request, 0, 7, sampling.max_tokens or 4, self.now, list(prompt))
        self._next += 1
        self.scheduler.admit(seq, self.now)
        self.sequences[seq.id] = seq
        return seq

    def plan(self) -> StepPlan | None:
        """Plan once; the step stays in flight."""
        plan = None
        for decision in self.scheduler.plan(self.now):
            if isinstance(decision, Submit):
                plan = decision.plan
                self.plans.append(plan)
            elif isinstance(decision, Cancel):
                self.cancels.append(decision)
        self.kv.check()
        return plan

    def finish(self, plan: StepPlan, *, failed: Sequence[SeqId] = (), cancelled: Sequence[SeqId] = ()) -> None:
        """The device has done the step."""
        results = []
        for chunk in plan.chunks:
            if chunk.seq in failed:
                results.append(SeqResult(chunk.seq, SeqStatus.FAILED, error="a logit is not a number"))
            elif chunk.seq in cancelled:
                results.append(SeqResult(chunk.seq, SeqStatus.CANCELLED))
            else:
                samples = any(output.kind is OutputKind.SAMPLE for output in chunk.outputs)
                tokens = (self._answer(chunk),) if samples else ()
                results.append(SeqResult(chunk.seq, SeqStatus.OK, chunk.num_tokens, tokens))
        took_s = self._seconds(plan)
        self.now += took_s
        status = StepStatus.COMPLETED if len(cancelled) < len(plan.chunks) else StepStatus.CANCELLED
        result = StepResult(plan.step, plan.lane, status, self.now - took_s, self.now, 1, tuple(results))
        self.updates += self.scheduler.commit(result, self.now)
        self.kv.check()

    def step(self) -> StepPlan | None:
        plan = self.plan()
        if plan is not None:
            self.finish(plan)
        return plan

    def run(self, max_steps: int = 1_000, *, obeys: bool = True) -> None:
        """Until nothing is left to do. `obeys`: cancels come in time; else the device has done everything by then."""
        queue: list[StepPlan] = []
        for _ in range(max_steps):
            while (plan := self.plan()) is not None:
                queue.append(plan)
            if not queue:
                assert self.scheduler.num_running == self.scheduler.num_waiting == 0, "stuck with work left"
                return
            oldest = queue.pop(0)
            told = [seq for cancel in self.cancels if cancel.step == oldest.step for seq in cancel.seqs]
            self.finish(oldest, cancelled=told if obeys else ())
            self.scheduler.check()
        raise AssertionError(f"not done after {max_steps} steps")

    def output(self, seq: Seq) -> list[int]:
        return [token for update in self.updates if update.seq == seq.id for token in update.tokens]


def chunks(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """(sequence, start, number of tokens) of each chunk."""
    assert plan is not None, "nothing was planned"
    return [(int(chunk.seq), chunk.start, chunk.num_tokens) for chunk in plan.chunks]
