"""Mechanisms: the parts of the policies that can be left out, by name, to see what each is worth.

Owns the names and what leaving one out means. Which presets have a mechanism is theirs to say.
Invariant: a name stands for one mechanism in every preset that has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Mechanism(StrEnum):
    PARTITION = "partition"
    SHARES = "shares"
    QUEUE_ORDER = "queue-order"
    DECODE_DELAY = "decode-delay"
    HAND_OVER = "hand-over"
    BALANCE = "balanced-split"
    OVERLAP = "overlap"
    GUARD = "guard"
    LAYERS = "layers"
    POLLING = "polling"
    PREEMPTION = "preemption"
    RESERVE = "reserve"
    FUSED = "fused"
    LANES = "lanes"
    SLICES = "slices"
    DEAD_BAND = "dead-band"
    ADMISSION = "admission"
    REFUSAL = "refusal"
    LEASES = "leases"
    JOINT_DEPTH = "joint-depth"
    PACE = "pace"


WITHOUT: Mapping[Mechanism, str] = {
    Mechanism.PARTITION: "prompts and decode both run on all units, each on as many as its part of their blocks is",
    Mechanism.SHARES: "decode keeps half of the units whatever happens",
    Mechanism.QUEUE_ORDER: "prompts are taken first come first",
    Mechanism.DECODE_DELAY: "decode steps are never put off",
    Mechanism.HAND_OVER: "decode gets the units of the last prompt when it has ended, not before",
    Mechanism.BALANCE: "when nothing holds its targets, decode has as much as there is",
    Mechanism.OVERLAP: "units change hands only when who had them has stopped",
    Mechanism.GUARD: "steps are taken to last as long as is to be expected, not as long as they may",
    Mechanism.LAYERS: "a prefill is launched whole: its units stay its own to its end, and nobody overtakes it",
    Mechanism.POLLING: "a decode step that would outlast the prefill waits for its end",
    Mechanism.PREEMPTION: "a prompt that has begun is never overtaken",
    Mechanism.RESERVE: "no slots of a step are kept for decode: first come first",
    Mechanism.FUSED: "no step holds prompts and decode",
    Mechanism.LANES: "no two steps run side by side",
    Mechanism.SLICES: "prompts and decode do not take turns on all units",
    Mechanism.JOINT_DEPTH: "form and share are chosen without drafts, and then how many there are",
    Mechanism.DEAD_BAND: "the better form or share is taken, be it by nothing",
    Mechanism.ADMISSION: "who fits into memory begins, though decode steps of one more are longer than was promised",
    Mechanism.REFUSAL: "who cannot have his first token in time waits all the same",
    Mechanism.LEASES: "prefixes that somebody who waits will want are evicted like any others",
    Mechanism.PACE: "steps count as long as they did at worst when they were calibrated, whatever they take now",
}
"""What happens when it is left out."""
