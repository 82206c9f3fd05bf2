"""Programs in the shape of vLLM's first examples: what changes is where names are imported from, and the model.

Each is written with the calls that those examples make, and is run as it stands on the default model.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plait.exec.native import presence

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(presence.missing() is not None, reason="takes minutes without the native runtime"),
]

IMPORT = re.compile(r"^from vllm[\w.]* import", re.MULTILINE)

BASIC = """
from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    llm = LLM(model=MODEL)
    outputs = llm.generate(prompts, sampling_params)
    print("Generated outputs:")
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt: {prompt!r}, Output: {generated_text!r}")


main()
"""

CHAT = """
from vllm import LLM, SamplingParams

llm = LLM(model=MODEL, trust_remote_code=True, enforce_eager=True)
sampling_params = llm.get_default_sampling_params()
sampling_params.max_tokens = 24
sampling_params.temperature = 0.0
conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I assist you today?"},
    {"role": "user", "content": "Name the capital of France."},
]
outputs = llm.chat(conversation, sampling_params, use_tqdm=False)
for output in outputs:
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
conversations = [conversation for _ in range(10)]
outputs = llm.chat(conversations, sampling_params, use_tqdm=True)
print(len(outputs), len({output.outputs[0].text for output in outputs}))
"""

EMBED = """
from vllm import LLM

prompts = ["Hello, my name is", "The capital of France is"]
llm = LLM(model=MODEL, runner="pooling", enforce_eager=True)
outputs = llm.embed(prompts)
for prompt, output in zip(prompts, outputs):
    embeds = output.outputs.embedding
    embeds_trimmed = (str(embeds[:16])[:-1] + ", ...]") if len(embeds) > 16 else embeds
    print(f"Prompt: {prompt!r} | Embeddings: {embeds_trimmed} (size={len(embeds)})")
"""

ASYNC = """
import asyncio

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def stream_response(engine, prompt, request_id):
    sampling_params = SamplingParams(
        max_tokens=20,
        temperature=0.8,
        top_p=0.95,
        seed=42,
        output_kind=RequestOutputKind.DELTA,
    )
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=sampling_params):
        for completion in output.outputs:
            new_text = completion.text
            if new_text:
                print(new_text, end="", flush=True)
        if output.finished:
            print(f"\\n[{request_id} finished]")
            break


async def main():
    engine_args = AsyncEngineArgs(model=MODEL, enforce_eager=True)
    engine = AsyncLLM.from_engine_args(engine_args)
    try:
        for i, prompt in enumerate(["The future of artificial intelligence is", "In a galaxy far, far away"], 1):
            await stream_response(engine, prompt, f"stream-example-{i}")
    finally:
        engine.shutdown()


asyncio.run(main())
"""


def run(program: str, model: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the program prints, with its imports and nothing else changed."""
    changed, count = IMPORT.subn("from plait import", program)
    assert count
    assert "vllm" not in changed
    exec(compile(changed, "quickstart.py", "exec"), {"__name__": "__main__", "MODEL": str(model)})
    return capsys.readouterr().out


def test_the_basic_program_continues_four_prompts(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *lines = run(BASIC, model_path, capsys).splitlines()
    assert first == "Generated outputs:"
    assert len(lines) == 4
    for line, prompt in zip(lines, ("Hello", "The president", "The capital", "The future"), strict=True):
        assert line.startswith(f"Prompt: '{prompt}")
        assert len(line.split("Output: ")[1]) > 10


def test_the_chat_program_answers_one_conversation_and_ten(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, many = run(CHAT, model_path, capsys).splitlines()
    assert one.startswith("Prompt: '<|im_start|>system\\nYou are a helpful assistant<|im_end|>")
    assert "Paris" in one
    assert many == "10 1"


def test_the_embedding_program_prints_two_vectors(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(EMBED, model_path, capsys).splitlines()
    assert len(lines) == 2
    assert all(line.endswith(", ...] (size=576)") for line in lines)
    assert lines[0].split("Embeddings: ")[1] != lines[1].split("Embeddings: ")[1]


def test_the_streaming_program_prints_two_streams(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(ASYNC, model_path, capsys)
    first, rest = text.split("\n[stream-example-1 finished]\n")
    second, rest = rest.split("\n[stream-example-2 finished]\n")
    assert rest == ""
    assert len(first) > 30
    assert len(second) > 30
