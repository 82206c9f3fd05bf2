"""Strange files: a sample with some bytes changed, cut or repeated is read, or refused in one line."""

from __future__ import annotations

import gzip
import random
from itertools import islice
from pathlib import Path

import pytest
from tests.unit.sim.traces.test_forms import DATA, SAMPLES

from plait.core.errors import PlaitError
from plait.core.request import Slo
from plait.sim.traces.forms import open_trace
from plait.sim.workload import Pace, Workload, measure

PER_FILE = 25
PIECES = (
    b"",
    b"\0",
    b"-",
    b"9" * 30,
    b"1e999",
    b"NaN",
    b"null",
    b"[]",
    b"{}",
    b'"',
    b"\n",
    b",",
    b"\xff",
    b"[" * 3000,
    b"true",
    b", ,",
    b".1.1",
    b"8" * 5000,
)


def mutated(content: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content) + 1)
        end = min(len(content), at + rng.choice((0, 1, 2, 8, 200)))
        content = content[:at] + rng.choice(PIECES) + content[end:]
    return content


def refusal(path: Path) -> str:
    """What is wrong with a trace; "" if some of its requests can be made."""
    try:
        trace = open_trace(path)
        load = Workload(trace, measure(trace), Pace(rate=1.0, requests=20)).load(1000, Slo(), max_tokens=5000)
        for _ in islice(iter(load.next_s, None), 20):
            load.take()
    except PlaitError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_changed_file_is_read_or_refused_in_a_line(name: str, tmp_path: Path) -> None:
    content = (DATA / name).read_bytes()
    plain = gzip.decompress(content) if name.endswith(".gz") else content
    rng = random.Random(name)
    for number in range(PER_FILE):
        path = tmp_path / f"{number}{'.csv' if '.csv' in name else '.json'}"
        path.write_bytes(mutated(plain[: rng.choice((2_000, 20_000))], rng))
        words = refusal(path)
        assert "\n" not in words
        assert len(words) < 600
