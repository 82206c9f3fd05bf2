"""A process that was forked off one with an engine has none itself, is told so and ends well; its parent goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.exec.native import presence

if not sys.platform.startswith("linux"):
    pytest.skip("elsewhere the system's own libraries do not outlive a fork", allow_module_level=True)

PROGRAM = """
import gc, os, sys
from plait import LLM, AsyncLLM, SamplingParams
from plait.core.errors import EngineStopped

GREEDY = SamplingParams(temperature=0, max_tokens=8)

def ask(): return llm.generate("x", GREEDY, use_tqdm=False)[0].outputs[0].token_ids

def use():
    try:
        ask()
    except EngineStopped as told:
        print(told, flush=True)

def forget():
    global llm, other
    del llm, other
    gc.collect()

def close():
    llm.close()
    other.close()

def destroy():
    global llm
    executor = llm._service.engine.thread._executor
    executor.close()
    assert executor.collect() == []
    # As if nobody had been careful: all that holds the executor goes, whatever its threads are at.
    state, executor._state = executor._state, None
    del state
    gc.collect()

llm, other = (kind(sys.argv[1], kv_cache_memory="4MiB", executor=sys.argv[2]) for kind in (LLM, AsyncLLM))
before = ask()
for manner in (use, forget, close, destroy):
    child = os.fork()
    if child == 0:
        manner()
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    print(manner.__name__, os.waitstatus_to_exitcode(status), flush=True)
print(ask() == before)
"""


@pytest.mark.parametrize("executor", ["reference", *["native"] * (presence.missing() is None)])
def test_a_process_that_was_forked_off_ends_well_and_so_does_its_parent(tmp_path: Path, executor: str) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    program = PROGRAM if executor == "native" else PROGRAM.replace(", destroy)", ")")
    done = subprocess.run(
        [sys.executable, "-c", program, str(model), executor], capture_output=True, text=True, timeout=100
    )
    told, *ends = done.stdout.splitlines()
    assert "was forked off it; make another one there" in told, done.stderr
    assert ends == ["use 7", "forget 7", "close 7", *["destroy 7"] * (executor == "native"), "True"]
    assert done.returncode == 0
