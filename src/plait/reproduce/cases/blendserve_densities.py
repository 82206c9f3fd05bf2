"""BlendServe's closed forms: densities of its traces, the split of memory, its four mixes, and the bound of two phases.

Owns the published numbers, what was worked out from the paper's formulas by hand, and which of them set others.
"""

from __future__ import annotations

from plait.cost.density import Job, Lengths, job_of, partition, two_phase_speedup
from plait.reproduce.band import Near, Printed
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import BLENDSERVE, Answer, Figure, NotRun, Reference
from plait.reproduce.models import LLAMA_8B_ON_A100

REQUESTS = 400_000
BURST, VIDEO = (244, 27), (121, 16384)
BURST_DENSITY, VIDEO_DENSITY = 17.78, 0.05
MMLU, MMLU_SHARING = (804, 2), 0.8646
"""The part of a prompt that other questions of its subject begin with, too: 695 tokens."""
CLASSES = ("BurstGPT", "OpenVid", "MMLU")
# Density and sharing; requests of each class, million tokens, hours and tokens/s at the optimum, all worked out by
# hand; tokens/s that the paper measured, and the GPU hours of the job at that speed.
MIXES = {
    "#1": (1.4, 0.35, ("322867", "200", "76934"), "152.8", "1.42", "29888", "11080", "3.8"),
    "#2": (0.9, 0.35, ("321337", "325", "78338"), "155.6", "1.61", "26899", "8408", "5.1"),
    "#3": (1.4, 0.05, ("391401", "221", "8378"), "116.5", "1.58", "20450", "8403", "3.9"),
    "#4": (0.9, 0.05, ("391089", "362", "8549"), "118.8", "1.79", "18405", "6325", "5.2"),
}


def _reference(section: str, what: str) -> Reference:
    return Reference(BLENDSERVE, section, what)


DENSITY_OF = {name: _reference("Fig. 2", f"density of {name}") for name in (*CLASSES, "WildChat", "Azure", "LIMO")}
MIX_INPUTS = (DENSITY_OF["BurstGPT"], DENSITY_OF["OpenVid"])
DFS_INPUT = _reference("1", "depth-first order reaches 71.7 % of the practical optimum")
NANOFLOW = {"ShareGPT": "2.54", "Splitwise": "4.22", "LMSYS": "3.83"}
NANOFLOW_TRACES = "needs the length traces of its repository (58,787, 19,366 and 100,000 requests), which are not here"
SPREAD = (
    "means do not decide it: the square of the outputs does. With the mean square that the printed density asks for "
    "(11.2e3, or 5.2e8 for OpenVid) it is met by construction"
)
CONSTANTS = "P 8.03e9, 312 TFLOP/s, 2.039 TB/s, keys 1,024 wide; the paper does not print the constants that it used"


def trace_mix(name: str) -> Job:
    """One of the paper's four synthetic traces, as requests whose outputs spread as the printed densities ask for."""
    density, sharing = MIXES[name][:2]
    model = LLAMA_8B_ON_A100
    burst = Lengths(*BURST, model.output_squared_of(*BURST, BURST_DENSITY))
    video = Lengths(*VIDEO, model.output_squared_of(*VIDEO, VIDEO_DENSITY))
    return job_of(model, (burst, video, Lengths(*MMLU, shared=MMLU_SHARING * MMLU[0])), REQUESTS, density, sharing)


def _density_figures() -> tuple[Figure, ...]:
    spread = (
        ("BurstGPT", "17.78", "244/27", "31.2"),
        ("OpenVid", "0.05", "121/16K", "0.097"),
    )
    at_means = [
        Figure(f"{name} at its means {means}", _reference("Fig. 2", f"{name} at its means"), "", worked_out=number)
        for name, _, means, number in spread
    ]
    set_by_spread = [
        Figure(
            f"{name} with spread",
            DENSITY_OF[name],
            printed,
            Printed(),
            calibrated_on=(DENSITY_OF[name],),
            note=SPREAD,
        )
        for name, printed, _, _ in spread
    ]
    return (
        Figure("WildChat, 496/510", DENSITY_OF["WildChat"], "2.13", Near(0.02), worked_out="2.103", note=CONSTANTS),
        Figure("Azure, 2508/23", _reference("Fig. 2", "Azure at its means"), "", worked_out="34.97"),
        Figure(
            "Azure, sharing 1 %",
            DENSITY_OF["Azure"],
            "33.2",
            Near(0.06),
            worked_out="34.6",
            note="at the means; some spread of the outputs lowers it further",
        ),
        Figure("MMLU, 804/2, sharing 86.46 %", DENSITY_OF["MMLU"], "54.91", Near(0.02), worked_out="54.28"),
        *at_means,
        *set_by_spread,
        Figure("LIMO at its means 109/7617", _reference("Fig. 2", "LIMO at its means"), "", worked_out="0.207"),
        Figure("LIMO with spread", DENSITY_OF["LIMO"], "0.14"),
        Figure("ShareGPT", _reference("Fig. 2", "density of ShareGPT"), "3.12"),
        *(
            Figure(f"{name} as NanoFlow counts it", _reference("NanoFlow's traces", name), "", worked_out=number)
            for name, number in NANOFLOW.items()
        ),
    )


def _partition_figures() -> tuple[Figure, ...]:
    note = "the paper's 40.7 and 19.3 add up to its 60 GB; exactly it is 40.62 and 19.38"
    return (
        Figure(
            "memory of the left side",
            _reference("dual scanner", "M_L"),
            "19.3",
            Near(0.01),
            " GB",
            worked_out="19.38",
            note=note,
        ),
        Figure(
            "memory of the right side",
            _reference("dual scanner", "M_R"),
            "40.7",
            Near(0.01),
            " GB",
            worked_out="40.62",
            note=note,
        ),
    )


def _mix_figures(name: str) -> tuple[Figure, ...]:
    _, _, counts, tokens, hours, speed, measured, gpu_hours = MIXES[name]

    def figure(what: str, number: str, unit: str = "") -> Figure:
        reference = _reference("A.3", f"{name}, {what}")
        return Figure(f"{name}, {what}", reference, "", unit=unit, worked_out=number, calibrated_on=MIX_INPUTS)

    return (
        *(figure(one, count) for one, count in zip(CLASSES, counts, strict=True)),
        figure("million tokens", tokens),
        figure("least time", hours, " h"),
        figure("tokens/s at best", speed),
        Figure(
            f"{name}, hours at the paper's speed",
            _reference("A.3", f"{name}, about 5 A100-hours"),
            "5",
            Near(0.25),
            " h",
            worked_out=gpu_hours,
            calibrated_on=(*MIX_INPUTS, _reference("Table 3", f"{name}, tokens/s")),
            note="the paper says about 5 A100-hours of each",
        ),
        Figure(
            f"{name}, tokens/s",
            _reference("Table 3", f"{name}, tokens/s"),
            measured,
            calibrated_on=(_reference("Table 3", f"{name}, tokens/s"),),
        ),
    )


def _bound_figures() -> tuple[Figure, ...]:
    what = "optimum over two phases"
    free = [
        Figure(
            f"{what}, density {density}", _reference("3", f"{what}, density {density}"), "", unit="x", worked_out=number
        )
        for density, number in ((0.9, "1.80"), (1.4, "1.63"))
    ]
    fitted = [
        Figure(
            f"{what}, density {density}, interference {part}",
            DFS_INPUT,
            "1.395",
            Near(0.02),
            "x",
            worked_out="1.40",
            calibrated_on=(DFS_INPUT,),
            note="1 / 71.7 %; the interference is chosen so that it is met",
        )
        for density, part in ((0.9, 0.35), (1.4, 0.25))
    ]
    return (*free, *fitted)


def _work_out() -> Answers:
    model = LLAMA_8B_ON_A100
    burst, video = (
        Lengths(*means, model.output_squared_of(*means, density))
        for means, density in ((BURST, BURST_DENSITY), (VIDEO, VIDEO_DENSITY))
    )
    left, right = partition(3.73, 0.096, 1.27, 60.0)
    found: dict[str, Answer] = {
        "WildChat, 496/510": model.density(Lengths(496, 510)),
        "Azure, 2508/23": model.density(Lengths(2508, 23)),
        "Azure, sharing 1 %": 0.99 * model.density(Lengths(2508, 23)),
        "MMLU, 804/2, sharing 86.46 %": (1 - MMLU_SHARING) * model.density(Lengths(*MMLU)),
        "BurstGPT at its means 244/27": model.density(Lengths(*BURST)),
        "OpenVid at its means 121/16K": model.density(Lengths(*VIDEO)),
        "BurstGPT with spread": model.density(burst),
        "OpenVid with spread": model.density(video),
        "LIMO at its means 109/7617": model.density(Lengths(109, 7617)),
        "LIMO with spread": NotRun("the spread of its outputs is not published, and it is in none of the four mixes"),
        "ShareGPT": NotRun("neither means nor filter are published"),
        **{f"{name} as NanoFlow counts it": NotRun(NANOFLOW_TRACES) for name in NANOFLOW},
        "memory of the left side": left,
        "memory of the right side": right,
    }
    for name in MIXES:
        found |= _mix_answers(name)
    return found | _bound_answers()


def _mix_answers(name: str) -> Answers:
    job, measured = trace_mix(name), MIXES[name][6]
    counts = {f"{name}, {one}": round(count) for one, (count, _) in zip(CLASSES, job.parts, strict=True)}
    ideal = job.tokens / job.optimum_s
    return {
        **counts,
        f"{name}, million tokens": job.tokens / 1e6,
        f"{name}, least time": job.optimum_s / 3600,
        f"{name}, tokens/s at best": ideal,
        f"{name}, hours at the paper's speed": job.tokens / float(measured) / 3600,
        f"{name}, tokens/s": NotRun(
            f"measured on an A100; that is {100 * float(measured) / ideal:.0f} % of what the formulas allow"
        ),
    }


def _bound_answers() -> dict[str, float]:
    what, found = "optimum over two phases", {}
    for density, part in ((0.9, 0.35), (1.4, 0.25)):
        found[f"{what}, density {density}"] = two_phase_speedup(BURST_DENSITY, VIDEO_DENSITY, density)
        name = f"{what}, density {density}, interference {part}"
        found[name] = two_phase_speedup(BURST_DENSITY, VIDEO_DENSITY, density, part)
    return found


CASE = Case(
    "blendserve-e5",
    "densities, mixes and bounds in closed form",
    BLENDSERVE,
    (
        *_density_figures(),
        *_partition_figures(),
        *(figure for name in MIXES for figure in _mix_figures(name)),
        *_bound_figures(),
    ),
    _work_out,
)
