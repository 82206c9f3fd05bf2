"""The soak as a program: rounds of random plans and of random requests, for as long as it is told.

    python -m tests.soak [--minutes N] [--seed S] [--model FILE] [--rounds N]

Rounds go over made-up models, plans and requests in turn, and the default model. Prints what was counted every ten
seconds; the last line is one JSON object. Ends with 1 if any answer was another than alone, or if anything leaked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.soak.soak import Report, Soak

REPORT_EVERY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Soak the native executor.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="end after so many rounds, however long they take")
    parser.add_argument("--model", type=Path, help="a GGUF file to soak beside the made-up models")
    given = parser.parse_args()
    soak = Soak(given.seed, given.model)
    began = reported = time.monotonic()
    while time.monotonic() < began + given.minutes * 60 and soak.num_rounds != given.rounds:
        soak.round()
        if time.monotonic() > reported + REPORT_EVERY_S:
            reported = time.monotonic()
            print(
                f"{reported - began:6.0f} s: {soak.tally.text()}, {len(soak.tally.differences)} differences", flush=True
            )
    report = soak.report()
    say(report, time.monotonic() - began)
    return 0 if report.is_good else 1


def say(report: Report, seconds: float) -> None:
    for line in (*report.differences, *(f"leaked: {what}" for what in report.leaks)):
        print(line)
    print(json.dumps({"seconds": round(seconds, 1), **report.numbers}))


if __name__ == "__main__":
    sys.exit(main())
