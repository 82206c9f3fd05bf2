"""Jenga's figures about waste: what a memory that keeps every token in every layer holds for nothing.

Owns the published numbers. Ours come from the code behind `plait inspect memory`.
"""

from __future__ import annotations

from plait.core.errors import InvariantError
from plait.inspect.memory import unread_fraction, unread_limit
from plait.reproduce.asked_memory import GEMMA_3, MINISTRAL, MLLAMA, SCOUT, cut_of, known, layout_of, memory_report
from plait.reproduce.band import Between, Near, Printed, Value
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import JENGA, Figure, NotRun, Reference

# name of the figure: (model, tokens, image tokens, printed, worked out)
WASTES: dict[str, tuple[str, int, int, str, str]] = {
    "Llama-3.2-Vision, 43 + 6,193": (MLLAMA, 43, 6193, "79.6", "79.586"),
    "Gemma-2, 8K": ("google/gemma-2-9b", 8192, 0, "25", "25.00"),
    "Ministral, 128K": (MINISTRAL, 131072, 0, "56.25", "56.25"),
    "Ministral, 92,408": (MINISTRAL, 92408, 0, "", "48.40"),
    "Ministral, 64K": (MINISTRAL, 65536, 0, "", "37.50"),
    "Gemma-3-27B, 8K": (GEMMA_3["27B"], 8192, 0, "", "73.39"),
    "Gemma-3-27B, 128K": (GEMMA_3["27B"], 131072, 0, "", "83.22"),
    "Gemma-3-12B, 8K": (GEMMA_3["12B"], 8192, 0, "", "72.92"),
    "Gemma-3-4B, Mooncake's mean": (GEMMA_3["4B"], 7772, 0, "73.6", "74.06"),
    "Gemma-3-12B, Mooncake's mean": (GEMMA_3["12B"], 7772, 0, "73.6", "72.35"),
    "Gemma-3-27B, Mooncake's mean": (GEMMA_3["27B"], 7772, 0, "73.6", "72.82"),
    "gpt-oss, 8K": ("openai/gpt-oss-20b", 8192, 0, "", "49.22"),
    "Llama-4-Scout, 32K": (SCOUT, 32768, 0, "", "56.25"),
}
LIMITS = {
    "Gemma-3-27B, without end": (GEMMA_3["27B"], "83", "83.87"),
    "Gemma-3-12B, without end": (GEMMA_3["12B"], "83", "83.33"),
    "Llama-4-Scout, without end": (SCOUT, "", "75.00"),
}
TRACE = "the paper measures on Mooncake's trace and does not name the size of the model; here is a sequence of its mean"
HEADLINE = "the paper's headline does not name model or length; both fit"


def _reference(section: str, what: str) -> Reference:
    return Reference(JENGA, section, what)


def _waste_figures() -> list[Figure]:
    found = []
    for name, (_, _, _, printed, worked_out) in WASTES.items():
        is_trace = printed == "73.6"
        found.append(
            Figure(
                name,
                _reference("waste", "Gemma-3 on Mooncake's trace" if is_trace else name),
                printed,
                Near(0.02) if is_trace else Printed(),
                " %",
                worked_out=worked_out,
                note=TRACE if is_trace else "",
            )
        )
    for name, (_, printed, worked_out) in LIMITS.items():
        reference = _reference("waste", "up to 83 %" if printed else name)
        note = HEADLINE if printed else ""
        found.append(Figure(name, reference, printed, Near(0.02), " %", worked_out=worked_out, note=note))
    return found


def _other_figures() -> tuple[Figure, ...]:
    return (
        Figure(
            "Llama-3.2-Vision, reserved over needed",
            _reference("waste", "up to 4.91x"),
            "4.91",
            Near(0.01),
            "x",
            worked_out="4.899",
            note="blocks of one token; the paper's is the most that it saw",
        ),
        Figure(
            "Llama-4-Scout, longest context over uniform",
            _reference("evaluation", "Llama 4, 3.7 M to 14.7 M tokens on H200"),
            "3.97",
            Between(3.97, 4.0),
            "x",
            note="eight ranks, 90.9 GB of cache each",
        ),
        Figure("Ministral, the paper's trace", _reference("waste", "Ministral on its trace"), "38.2", Printed(), " %"),
        Figure("a buddy allocator's rounding of Gemma-3-27B", _reference("buddy", "wasted"), "18.75", Printed(), " %"),
    )


def _work_out() -> Answers:
    found: dict[str, Value | NotRun] = {}
    for name, (model, tokens, images, _, _) in WASTES.items():
        report = memory_report(known(model), "uniform", (tokens, images))
        found[name] = 100 * unread_fraction(report.lengths[0].usage)
    for name, (model, _, _) in LIMITS.items():
        found[name] = 100 * unread_limit(layout_of(memory_report(known(model), "uniform")))
    vision = memory_report(known(MLLAMA), "uniform", (43, 6193), tokens_per_block=1).lengths[0].usage
    uniform, typed = (memory_report(known(SCOUT), name, ranks=8).largest_context for name in ("uniform", "jenga"))
    if not uniform or not typed:
        raise InvariantError("a layout holds any length of Llama-4-Scout, or none")
    rounded = cut_of(layout_of(memory_report(known(GEMMA_3["27B"]), "buddy")), "window")
    return found | {
        "Ministral, the paper's trace": NotRun(
            "its lengths are not published; a length of 66,800 tokens would give it"
        ),
        "Llama-3.2-Vision, reserved over needed": vision.reserved_bytes / vision.needed_bytes,
        "Llama-4-Scout, longest context over uniform": typed / uniform,
        "a buddy allocator's rounding of Gemma-3-27B": 100 * rounded.block_padding_bytes / rounded.block_bytes,
    }


CASE = Case(
    "jenga-waste",
    "what a uniform memory holds for nothing",
    JENGA,
    (*_waste_figures(), *_other_figures()),
    _work_out,
)
