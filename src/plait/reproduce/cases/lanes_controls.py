"""Where lanes must not help (MuxWise 4.6, Bullet 5): no targets, a device of few SMs, a model whose decode computes.

Owns the devices and loads of these controls. A simulation in which lanes win everywhere would be wrong about them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from plait.cost.hardware import HardwareSpec
from plait.model.program import Program
from plait.reproduce.band import Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.lanes_on_a100 import LAW_8B, LEARNED, RATES, SEEDS, TARGETS, lengths, one_a100, over_seeds
from plait.reproduce.contests import Contestant, arrivals, play
from plait.reproduce.figure import BULLET as BULLET_PAPER
from plait.reproduce.figure import MUXWISE as MUXWISE_PAPER
from plait.reproduce.figure import Evidence, Figure, Reference
from plait.reproduce.shapes import Mixer, Shape, program_of
from plait.reproduce.stages import Lab, Stage
from plait.sched.multiplex.presets import BULLET, MUXWISE
from plait.sim.arrivals import Arrival

COUNT = 100
CHUNKED = Contestant(step_tokens=2048)
NO_TARGETS = "tokens/s of a full queue without targets, MuxWise over chunks of 2,048"
ON_A100 = "requests within targets, Bullet over chunks of 2,048: A100"
FEW_SMS = "requests within targets, Bullet over chunks of 2,048: a third of the SMs"
ABSORBED = "tokens/s of a full queue, Bullet over chunks of 2,048: a model whose decode computes"
FEW = 36


@cache
def few_sms() -> HardwareSpec:
    """A third of an A100's SMs at all of its memory: decode needs 30 of 36 to draw all of it."""
    device = one_a100().hardware
    rates = {name: rate * FEW / device.share_units for name, rate in device.rates.items()}
    flops_per_s = device.flops_per_s * FEW / device.share_units
    return replace(device, name="36 SMs", share_units=FEW, flops_per_s=flops_per_s, rates=rates)


@cache
def absorbed() -> Program:
    """Of Llama-8B's size, with one latent of 576 numbers a token that 32 heads read (as absorbed MLA): a byte of cache
    is computed with 32 times.
    """
    layers = (Mixer.FULL,) * 32
    shape = Shape("absorbed", layers, hidden=4096, heads=32, kv_heads=1, head_dim=576, ffn=6144, vocab=128_256)
    return program_of(shape)


def work_out(seeds: Sequence[int] = SEEDS, count: int = COUNT) -> Answers:
    return over_seeds(lambda seed: _one_seed(seed, count), seeds)


def _one_seed(seed: int, count: int) -> Mapping[str, float]:
    stage = one_a100()
    return {
        NO_TARGETS: _throughput(stage, Contestant(MUXWISE), seed, count),
        ON_A100: _attained(stage, RATES["sharegpt"], seed, count),
        FEW_SMS: _attained(replace(stage, hardware=few_sms()), RATES["sharegpt"] / 3, seed, count),
        ABSORBED: _throughput(replace(stage, program=absorbed()), Contestant(BULLET), seed, count),
    }


def _throughput(stage: Stage, contestant: Contestant, seed: int, count: int) -> float:
    """All of them waiting from the start, and nobody asks for anything."""
    lab = Lab(stage, seed)
    load = [Arrival(0.0, one.request) for one in arrivals(lengths("arxiv", count // 2, seed), 1.0, seed, 32_000)]
    ours, chunked = (play(lab, one, load).report.total_tokens_per_s for one in (contestant, CHUNKED))
    return ours / chunked


def _attained(stage: Stage, rate: float, seed: int, count: int) -> float:
    lab, slo = Lab(stage, seed), TARGETS["sharegpt"]
    load = arrivals(lengths("sharegpt", count, seed), rate, seed, stage.program.vocab_size)
    ours, chunked = (play(lab, one, load, slo).attainment for one in (Contestant(BULLET), CHUNKED))
    return ours / max(chunked, 1 / count)


_figure = partial(Figure, evidence=Evidence.SIMULATED, calibrated_on=LAW_8B)
ROOFS = f"steps cost nothing to launch here; {LEARNED}"

CASE = Case(
    "bullet-muxwise-controls",
    "where lanes must not help: no targets, few SMs, decode that computes",
    BULLET_PAPER,
    (
        _figure(
            NO_TARGETS,
            Reference(MUXWISE_PAPER, "4.6", "not useful without targets"),
            "no gain",
            Between(high=1.05),
            "x",
            note=f"{COUNT // 2} documents like arXiv's, all waiting at once; {ROOFS}",
        ),
        _figure(
            ON_A100,
            Reference(BULLET_PAPER, "4.2", "SLO compliance on an A100"),
            "a gain",
            Between(low=1.1),
            "x",
            note=f"the same load on the device where there is one; {ROOFS}",
        ),
        _figure(
            FEW_SMS,
            Reference(BULLET_PAPER, "5", "few SMs: decode needs most of them for its bandwidth"),
            "no gain",
            Between(high=1.05),
            "x",
            note=(
                "ShareGPT at a third of the rate on an A100 with 36 of its SMs and all of its memory; any share that "
                f"leaves prompts something takes bandwidth from decode; {ROOFS}"
            ),
        ),
        _figure(
            ABSORBED,
            Reference(BULLET_PAPER, "5", "models like MLA's: decode is bound by compute"),
            "no gain",
            Between(high=1.05),
            "x",
            note=(
                "a model of Llama-8B's size whose 32 heads read one latent of a token: attention of decode computes as "
                f"much as it reads, so nothing is left over beside it; {ROOFS}"
            ),
        ),
    ),
    work_out,
)
