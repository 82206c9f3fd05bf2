"""How long `plait batch` takes from the start of its process to the first token, phase by phase, and what it occupies.

The command is the real one, with timers around its parts; the model is in the cache of files after the run that does
not count. Then an engine answers 64 requests at once, and what the kernel says is resident is held against what the
start report says. Medians; prints tables and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

PHASES = ("interpreter", "imports", "model file", "tokenizer", "weights and threads", "first token")
SEQUENCES, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 128, 16
MIB = 1024 * 1024
BODY = {"model": "default", "prompt": "A short question", "max_tokens": 1, "temperature": 0}


class Stopwatch:
    """When each phase ended, on the clock that all processes share, and this process's processor time until then."""

    def __init__(self) -> None:
        self.ends: dict[str, tuple[float, float]] = {}

    def mark(self, phase: str) -> None:
        self.ends.setdefault(phase, (time.monotonic(), time.process_time()))

    def marking(self, phase: str, work: Callable[..., object]) -> Callable[..., object]:
        """`work`, which ends the phase."""

        def timed(*given: object, **named: object) -> object:
            try:
                return work(*given, **named)
            finally:
                self.mark(phase)

        return timed


def batch_with_timers(arguments: list[str], marks: Path) -> int:
    """`plait`, in this process; its first line is the end of the first phase."""
    watch = Stopwatch()
    watch.mark("interpreter")
    # What the command imports before it begins.
    from plait import build
    from plait.cli import batch
    from plait.cli.main import main
    from plait.core.events import Emitted, Event
    from plait.metrics.totals import Totals

    class Timed(Totals):
        def __call__(self, event: Event) -> None:
            if isinstance(event, Emitted):
                watch.mark("first token")
            super().__call__(event)

    watch.mark("imports")
    # The tokenizer is made when file and program are known; the template is the last of what is made of text.
    for name, phase in (("build_program", "model file"), ("chat_template_from_gguf", "tokenizer")):
        setattr(build, name, watch.marking(phase, getattr(build, name)))
    setattr(batch, "start_engine", watch.marking("weights and threads", batch.start_engine))  # noqa: B010
    setattr(batch, "Totals", Timed)  # noqa: B010
    code = main(arguments)
    marks.write_text(json.dumps(watch.ends))
    return code


def engine_under_load(model: str) -> int:
    """Starts an engine, says what the start report says, serves, and waits on standard input before each step."""
    import asyncio

    from serving.plait_engine import engine_options, open_model, running

    from plait.core.ids import RequestId
    from plait.core.request import Request
    from plait.core.sampling import SamplingParams

    options = engine_options({"model": model})
    with running(options, open_model(options)) as engine:
        print(json.dumps(engine.notes), flush=True)
        sys.stdin.readline()

        async def ask(number: int) -> None:
            prompt = tuple(100 + (number * 7919 + place * 104_729) % 40_000 for place in range(PROMPT_TOKENS))
            sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
            async for _ in engine.client.submit(Request(RequestId(str(number)), prompt, sampling)):
                pass

        async def ask_all() -> None:
            await asyncio.gather(*map(ask, range(SEQUENCES)))

        asyncio.run(ask_all())
        print("served", flush=True)
        sys.stdin.readline()
    return 0


def time_start(model: str, folder: Path) -> dict[str, float]:
    """Seconds of each phase and of all up to the first token; processor time, that of all until the process ends."""
    asked, answered, marks = folder / "in.jsonl", folder / "out.jsonl", folder / "marks.json"
    asked.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": BODY}) + "\n")
    command = ["batch", "-i", str(asked), "-o", str(answered), "-m", model, "--restart", "--quiet", "--json"]
    spent = _processor_s()
    began = time.monotonic()
    subprocess.run([sys.executable, __file__, "--timed", str(marks), *command], check=True, stdout=subprocess.DEVNULL)
    ends = json.loads(marks.read_text())
    found = {"first token": ends["first token"][0] - began, "processor first token": _processor_s() - spent}
    before = (began, 0.0)
    for phase in PHASES:
        found[f"phase {phase}"] = ends[phase][0] - before[0]
        found[f"processor phase {phase}"] = ends[phase][1] - before[1]
        before = ends[phase]
    return found


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_memory(model: str) -> dict[str, float]:
    """MiB: what the report says and what the kernel says, at the start and behind a load."""
    command = [sys.executable, __file__, "--load", model]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = "\n".join(json.loads(process.stdout.readline()))
        started = resident(process.pid)
        print(f"\n{said}")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "served\n"
        served = resident(process.pid)
        with suppress(BrokenPipeError):
            process.stdin.write("\n")
            process.stdin.flush()
    at_start = number_before(said, "MiB now")
    blocks = SEQUENCES * -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // int(number_before(said, "tokens of a sequence")))
    later = number_before(said, "MiB of activations") + number_before(said, "KiB of KV cache") * blocks / 1024
    return {
        "said_at_start": at_start,
        "at_start": started,
        "said_under_load": at_start + later,
        "under_load": served,
        "interpreter": bare_interpreter(),
    }


def bare_interpreter() -> float:
    """MiB of a Python that has imported nothing."""
    code = "import sys; sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", f"print(flush=True); {code}"], stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        size = resident(process.pid)
        process.stdin.close()
    return size


def resident(process: int) -> float:
    """MiB, as `ps` shows them."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"^VmRSS:\s*(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def number_before(text: str, what: str) -> float:
    found = re.search(rf"([\d,.]+) {re.escape(what)}", text)
    if found is None:
        raise ValueError(f"the start report does not say how many {what}: {text}")
    return float(found[1].replace(",", ""))


def report_times(samples: list[Mapping[str, float]]) -> dict[str, float]:
    medians = {name: statistics.median(one[name] for one in samples) for name in samples[0]}
    print(f"{'':<26}{'median s':>10}{'least':>10}{'most':>10}{'processor s':>14}")
    for name in (*(f"phase {phase}" for phase in PHASES), "first token"):
        values = [one[name] for one in samples]
        shown = "to the first token" if name == "first token" else name
        row = "".join(f"{value:>10.3f}" for value in (medians[name], min(values), max(values)))
        print(f"{shown:<26}{row}{medians[f'processor {name}']:>14.3f}")
    return medians


def report_memory(found: Mapping[str, float]) -> None:
    print(f"{'MiB':<22}{'resident':>10}{'said':>10}{'off by':>10}")
    for name in ("at_start", "under_load"):
        size, said = found[name], found[f"said_{name}"]
        print(f"{name.replace('_', ' '):<22}{size:>10.1f}{said:>10.1f}{said / size - 1:>10.1%}")
    print(f"of which {found['interpreter']:.1f} MiB are a Python that has imported nothing")


def main() -> int:
    if sys.argv[1:2] == ["--timed"]:
        return batch_with_timers(sys.argv[3:], Path(sys.argv[2]))
    if sys.argv[1:2] == ["--load"]:
        return engine_under_load(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repetition")
    given = parser.parse_args()
    from serving.quiet import QUIET_FRACTION, busy_fraction

    busy = busy_fraction()
    with tempfile.TemporaryDirectory() as folder:
        samples = [time_start(given.model, Path(folder)) for _ in range(1 + (1 if given.quick else given.repeats))]
    medians = report_times(samples[1:])
    memory = measure_memory(given.model)
    report_memory(memory)
    if busy is not None and busy > QUIET_FRACTION:
        print(f"NOT QUIET: others used {busy:.0%} of the machine; only processor times mean something")
    print(json.dumps({"seconds": medians, "mib": memory, "busy_fraction": busy}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
