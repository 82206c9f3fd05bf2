"""Memory of the native executor on the default model: what it says is what the system says.

Measured in a process of its own, because memory that others have freed would be taken again unseen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

WITHIN = 0.05
AHEAD_BYTES = 32 << 20
PROGRAM = """
import json, sys
from pathlib import Path

from plait.model.cache_type import CacheType
from plait.core.clock import RealClock
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import BlockGrant, Chunk, Join, OutputKind, Outputs, StepPlan
from plait.exec.native.executor import NativeConfig, NativeExecutor
from plait.model.cache_layout import plan_layout
from plait.model.config import config_from_gguf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.weights.gguf import read_gguf
from plait.weights.names import load_gguf_weights

CHUNK, NUM_CHUNKS, BLOCK = 512, 8, 32

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return [int(found[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile")]

file = read_gguf(Path(sys.argv[1]))
program = build_program(config_from_gguf(file.metadata, file.tensors.keys()))
weights = load_gguf_weights(file, expected_weights(program), "0" * 64)
layout = plan_layout(program, memory_bytes=1 << 30, tokens_per_block=BLOCK, cache_type=CacheType.F16)
before = resident()
executor = NativeExecutor(NativeConfig((-1, -1), max_step_tokens=CHUNK))
executor.load({"step": program}, weights, layout)
clock = RealClock()
table = BlockGrant(SeqId(0), GroupId(0), 0, tuple(BlockId(b) for b in range(CHUNK * NUM_CHUNKS // BLOCK)))
for number in range(NUM_CHUNKS):
    outputs = (Outputs(0, 64, OutputKind.SAMPLE),)
    chunk = Chunk(SeqId(0), number * CHUNK, CHUNK, tuple(range(CHUNK)), outputs=outputs)
    join = Join(SeqId(0), 0, SamplingParams(temperature=0.0), 0, 0, CHUNK * NUM_CHUNKS)
    first = number == 0
    executor.submit(
        StepPlan(StepId(number), LaneId(0), (join,) if first else (), (table,) if first else (), (), (chunk,))
    )
    clock.wait(executor)
    executor.collect()
after = resident()
held = executor.footprint
written = layout.groups[0].block_bytes * len(table.blocks)
executor.close()
print(json.dumps({
    "stated": held.weights + held.arena + written,
    "taken": after[0] - before[0],
    "files": after[1] - before[1],
    "packed": held.weights,
    "stored": weights.total_bytes,
}))
"""


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_is_packed_weights_cache_and_activations(model_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(model_path)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # Pages of the cache are taken ahead of use, as far as the thread that does it has come.
    least, most = found["stated"], found["stated"] + AHEAD_BYTES
    assert (1 - WITHIN) * least <= found["taken"] <= (1 + WITHIN) * most
    assert found["files"] <= WITHIN * found["stated"], "pages of the model file were let go"
    assert found["packed"] <= 1.02 * found["stored"]
