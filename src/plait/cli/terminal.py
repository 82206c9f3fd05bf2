"""Terminal: what commands show while they work.

Owns the start-up report and the download bar. Knows no command, and leaves printing to `streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tqdm import tqdm

from plait.build import LocalEngine
from plait.metrics.profile_figures import Figures

MIB = 1024 * 1024
LOGPROB_TOLERANCE = 1e-4
"""By how much log-probabilities under load may differ from those alone where an executor does not promise bits: two
orders of summing in float32 differ by about 1e-6 of the largest logits, and those are below 100. See
docs/concepts/numerics.md, "Tests of closeness".
"""


@contextmanager
def download_progress(name: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar that appears with the first bytes; nothing is shown for a model that is there already."""
    bars: list[tqdm[None]] = []

    def show(num_bytes: int, total_bytes: int) -> None:
        if quiet:
            return
        if not bars:
            bars.append(_download_bar(name, total_bytes))
        bars[0].update(num_bytes - bars[0].n)

    try:
        yield show
    finally:
        for bar in bars:
            bar.close()


def _download_bar(name: str, total_bytes: int) -> tqdm[None]:
    return tqdm(iter(()), total=total_bytes, unit="B", unit_scale=True, unit_divisor=1024, desc=f"fetching {name}")


def start_report(engine: LocalEngine) -> list[str]:
    """What runs where, with which limits, and what they mean."""
    sizes, model, executor = engine.sizes, engine.model, engine.executor
    sequences = sizes.capacity_tokens / sizes.max_model_tokens
    promise = (
        "bit for bit" if executor.bit_exact else f"token for token, log-probabilities within {LOGPROB_TOLERANCE:g}"
    )
    return [
        f"model     {model.name}: {model.program.num_parameters / 1e6:.1f} M parameters, "
        f"{model.weights.total_bytes / MIB:.0f} MiB, up to {sizes.max_model_tokens:,} tokens",
        f"memory    {sizes.memory_bytes / MIB:,.0f} MiB of KV cache hold {sizes.capacity_tokens:,} tokens: "
        f"{sequences:.1f} sequences of full length, any number of shorter ones",
        *(f"          {reason}" for reason in sizes.reasons),
        f"executor  {executor.name}: at most {executor.max_rows} sequences and {executor.max_step_tokens} tokens a "
        f"step; answers do not depend on the load, {promise}",
        *(f"          {note}" for note in engine.notes),
        f"numerics  {executor.fingerprint}",
        *(f"warning   {warning}" for warning in (*model.notes, *model.tokenizer.warnings)),
    ]


def with_profile(summary: Mapping[str, object], figures: Figures | None) -> Mapping[str, object]:
    """A closing summary for programs, with what was profiled where that was asked for."""
    return summary if figures is None else {**summary, "profile": figures.json_object()}
