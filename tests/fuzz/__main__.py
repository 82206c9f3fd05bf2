"""`python -m tests.fuzz --inputs 200000 --seed 1`: feed the readers of model files with strange input.

Owns the command line and the report. Goes on where it was stopped if `--ledger` names the same file. The faulty inputs
are kept, each in a folder of its own, for `--replay`.
Exit code 1: there were faults.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from tests.fuzz import campaign
from tests.fuzz.campaign import Tally
from tests.fuzz.readers import READERS
from tests.fuzz.worker import input_of, put


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=200_000, help="of all readers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--readers", default=",".join(READERS), help=f"of {', '.join(READERS)}")
    parser.add_argument("--ledger", type=Path, help="a file that remembers how far it got")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where faulty inputs are kept")
    parser.add_argument("--replay", type=Path, help="read one kept input, with the one reader of --readers")
    options = parser.parse_args()
    names = options.readers.split(",")
    if unknown := [name for name in names if name not in READERS]:
        parser.error(f"no reader is called {', '.join(unknown)}; there are {', '.join(READERS)}")
    if options.replay is not None:
        print(campaign.replay(names[0], options.replay), end="")
        return 0
    tallies = _remembered(options.ledger, options.seed)
    share = -(-options.inputs // len(names))
    while unfinished := [name for name in names if tallies.setdefault(name, Tally()).next < share]:
        # The one that is furthest behind: an interrupted campaign has asked every reader the same.
        name = min(unfinished, key=lambda name: tallies[name].next)
        known = len(tallies[name].faults)
        campaign.run(name, options.seed, share, tallies[name])
        for number, what in tallies[name].faults[known:]:
            folder = options.keep / f"{name}-{options.seed}-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            put(input_of(name, options.seed, number), folder)
            print(f"{name} {number}: {what} ({folder})", flush=True)
        _remember(options.ledger, options.seed, tallies)
    for name in names:
        _report(name, tallies[name])
    return int(any(tallies[name].faults for name in names))


def _report(name: str, tally: Tally) -> None:
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(tally.outcomes.items()))
    print(f"{name}: {tally.next:,} inputs, {counts}; slowest {tally.slowest_s:.2f} s")


def _remembered(ledger: Path | None, seed: int) -> dict[str, Tally]:
    if ledger is None or not ledger.exists():
        return {}
    kept = json.loads(ledger.read_text())
    if kept["seed"] != seed:
        raise SystemExit(f"{ledger} belongs to --seed {kept['seed']}")
    return {
        name: Tally(one["next"], Counter(one["outcomes"]), [tuple(fault) for fault in one["faults"]], one["slowest_s"])
        for name, one in kept["readers"].items()
    }


def _remember(ledger: Path | None, seed: int, tallies: dict[str, Tally]) -> None:
    if ledger is None:
        return
    kept = {
        name: {
            "next": tally.next,
            "outcomes": dict(tally.outcomes),
            "faults": tally.faults,
            "slowest_s": tally.slowest_s,
        }
        for name, tally in tallies.items()
    }
    new = ledger.with_suffix(".new")
    new.write_text(json.dumps({"seed": seed, "readers": kept}))
    new.replace(ledger)


if __name__ == "__main__":
    sys.exit(main())
