"""How near the machine's limit kernels and runtime are: K1 to K10, fractions and ratios measured in one process.

K1 products against the roofline; K2 integers against f32; K3 one row; K4 exact rows; K5 against NumPy and torch;
K6 attention; K7 mixed batches; K8 overhead of a step; K9 an even rate; K10 a whole engine, piece by piece.
Samples are taken in turns, there and back, with the machine's rates among them; medians. Prints a table and, as its
last line, one JSON object. docs/guides/benchmark.md says how to read it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kernel.library import CacheType, Library, build, scheme_names, targets_of
from kernel.report import Section
from kernel.setting import MIB, Setting, last_cache_bytes, num_cores
from kernel.turns import Effort
from serving.quiet import QUIET_FRACTION, busy_fraction

Measure = Callable[[Setting], Section]
MEASURES = {
    "k1": "products",
    "k2": "products",
    "k3": "products",
    "k4": "rows",
    "k5": "libraries",
    "k6": "attention",
    "k7": "mixtures",
    "k8": "steps",
    "k9": "products",
    "k10": "ablation",
}
"""In which file of bench/kernel a measure is. Files are imported when they are wanted: some need Plait, one torch."""
BLAS_SETTINGS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""They make OpenBLAS use something else than what is best for this machine."""
FORMATS = ("f32", "bf16", "q8_0", "q4_1", "int8")
"""Those of them that there are."""
FULL = Effort(sample_s=0.0005, num_rounds=8)
QUICK = Effort(sample_s=0.0003, num_rounds=2)


def main() -> int:
    given = _arguments()
    if not given.keep_blas:
        for name in BLAS_SETTINGS:
            os.environ.pop(name, None)
    try:
        setting = _setting(given)
        chosen = _named(given.only, MEASURES)
        busy = busy_fraction()
        sections = []
        for name in chosen:
            began = time.perf_counter()
            measure: Measure = getattr(importlib.import_module(f"kernel.{MEASURES[name]}"), name)
            section = measure(setting)
            section.seconds = time.perf_counter() - began
            sections.append(section)
            print(section.text(), flush=True)
    except (ValueError, OSError) as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 2
    if busy is not None and busy > QUIET_FRACTION:
        print(f"NOT QUIET: others used {busy:.0%} of the machine before the start; these figures are only a first look")
    result = {
        "sections": [section.json_object() for section in sections],
        "busy_fraction": busy,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "target": setting.target,
        "cold_bytes": setting.cold_bytes,
        "command": sys.argv[1:],
    }
    if given.json is not None:
        given.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(json.dumps(result))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MEASURES), metavar="K1,K3", help="which measures [all]")
    usual = ",".join(FORMATS)
    parser.add_argument("--formats", default="", metavar="F32,Q8_0", help=f"number schemes, or all [{usual}]")
    parser.add_argument("--threads", default="", metavar="1,2", help="numbers of threads [1 and all cores]")
    parser.add_argument("--target", default="", help="instruction set [the best that runs here]")
    parser.add_argument("--targets", default="", metavar="AVX2,AVX512", help="of K2 [all that run here but baseline]")
    parser.add_argument("--cache", default="f16", metavar="F16", help="numbers of K6's keys and values [f16]")
    parser.add_argument("--rounds", type=int, help=f"there and back, two samples each [{FULL.num_rounds}]")
    parser.add_argument("--sample-ms", type=float, help=f"least length of a sample [{FULL.sample_s * 1e3}]")
    parser.add_argument("--best", action="store_true", help="shortest samples, not medians: on a machine with others")
    parser.add_argument(
        "--processor-time", action="store_true", help="one thread, seconds in which it runs: on a machine with others"
    )
    parser.add_argument(
        "--keep-blas", action="store_true", help=f"heed {' and '.join(BLAS_SETTINGS)}, which are otherwise dropped"
    )
    parser.add_argument("--library", type=Path, help="plait_bench, if it is not to be built")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON object there, too")
    parser.add_argument("--quick", action="store_true", help="fewer rows, shapes and samples: does everything run?")
    return parser.parse_args()


def _setting(given: argparse.Namespace) -> Setting:
    names = scheme_names()
    asked = ",".join(one for one in FORMATS if one in names) if not given.formats else given.formats
    formats = names if asked == "all" else _named(asked, names)
    usual = QUICK if given.quick else FULL
    effort = Effort(
        usual.sample_s if given.sample_ms is None else given.sample_ms / 1e3,
        usual.num_rounds if given.rounds is None else given.rounds,
        given.best,
    )
    library = Library(given.library or build())
    targets = targets_of(library)
    target = _named(given.target, targets)[0] if given.target else targets[-1]
    cores = num_cores()
    counts = (
        [int(text) for text in given.threads.split(",")] if given.threads else [cores] if given.quick else [1, cores]
    )
    if given.processor_time:
        counts = [1]
    return Setting(
        library=library,
        effort=effort,
        threads=tuple(dict.fromkeys(counts)),
        target=target,
        targets=tuple(
            _named(given.targets, targets) if given.targets else [one for one in targets if one != "baseline"]
        ),
        schemes={name: names.index(name) for name in formats},
        quick=given.quick,
        cold_bytes=max(3 * last_cache_bytes(), 16 * MIB),
        processor_time=given.processor_time,
        cache_type=CacheType[_named(given.cache, [one.name.lower() for one in CacheType])[0].upper()],
    )


def _named(text: str, known: Mapping[str, object] | list[str] | tuple[str, ...]) -> list[str]:
    """The names in a list with commas; `ValueError` for one that is not known."""
    names = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is unknown here; choose from {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
