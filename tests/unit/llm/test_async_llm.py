"""`AsyncLLM` on a tiny model: streams of three kinds, many at once, aborts, and one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    InputError,
    RequestError,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    UsageError,
)

T = TypeVar("T")
PATIENCE_S = 60.0
ENDLESS = 20_000
"""Tokens."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, whose answers may be so long that they are under way whenever somebody ends them."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", context=ENDLESS + 1000)


@pytest.fixture
def with_engine(roomy: Path) -> Callable[[Callable[[AsyncLLM], Coroutine[object, object, T]]], T]:
    def run(work: Callable[[AsyncLLM], Coroutine[object, object, T]]) -> T:
        async def main() -> T:
            async with AsyncLLM(roomy, kv_cache_memory="4MiB", max_num_seqs=16) as engine:
                return await asyncio.wait_for(work(engine), PATIENCE_S)

        return asyncio.run(main())

    return run


Run = Callable[[Callable[[AsyncLLM], Coroutine[object, object, object]]], object]


def asking(kind: RequestOutputKind, **more: object) -> SamplingParams:
    said: dict[str, object] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "output_kind": kind, **more}
    return SamplingParams(**said)  # type: ignore[arg-type]


async def items(engine: AsyncLLM, params: SamplingParams, request_id: str = "r") -> list[RequestOutput]:
    return [item async for item in engine.generate("stream me", params, request_id)]


def test_cumulative_items_grow_and_the_last_is_all(tiny: Path, with_engine: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        got = await items(engine, asking(RequestOutputKind.CUMULATIVE))
        lengths = [len(item.outputs[0].token_ids) for item in got]
        assert lengths == sorted(lengths)
        assert [item.finished for item in got] == [False] * (len(got) - 1) + [True]
        assert got[-1].outputs[0].finish_reason == "length"
        (final,) = await items(engine, asking(RequestOutputKind.FINAL_ONLY))
        assert final.outputs == got[-1].outputs
        assert final.request_id == "r"

    with_engine(work)
    with LLM(tiny, kv_cache_memory="4MiB") as llm:
        (blocking,) = llm.generate("stream me", asking(RequestOutputKind.FINAL_ONLY), use_tqdm=False)
    assert len(blocking.outputs[0].token_ids) == 12


def test_deltas_joined_are_the_whole(with_engine: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        params = asking(RequestOutputKind.DELTA, n=3, temperature=1, seed=3, logprobs=1)
        texts, tokens, logprobs = [""] * 3, [[], [], []], [0, 0, 0]  # type: ignore[var-annotated]
        async for item in engine.generate("stream me", params, "deltas"):
            for choice in item.outputs:
                texts[choice.index] += choice.text
                tokens[choice.index] += choice.token_ids
                logprobs[choice.index] += len(choice.logprobs or ())
        params.output_kind = RequestOutputKind.FINAL_ONLY
        (final,) = await items(engine, params)
        assert [choice.text for choice in final.outputs] == texts
        assert [choice.token_ids for choice in final.outputs] == tokens
        assert logprobs == [12, 12, 12]

    with_engine(work)


def test_scores_of_the_prompt_come_once(with_engine: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        got = await items(engine, asking(RequestOutputKind.DELTA, prompt_logprobs=0))
        scored = [item.prompt_logprobs for item in got if item.prompt_logprobs is not None]
        assert sum(map(len, scored)) == len("stream me")
        assert scored[0][0] is None

    with_engine(work)


def test_many_at_once_get_what_each_gets_alone(with_engine: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        async def ask(number: int) -> list[int]:
            params = asking(RequestOutputKind.FINAL_ONLY, temperature=1, seed=number)
            (item,) = [item async for item in engine.generate(f"question {number}", params, f"id-{number}")]
            return list(item.outputs[0].token_ids)

        together = await asyncio.gather(*(ask(number) for number in range(40)))
        assert [await ask(number) for number in (0, 17, 39)] == [together[number] for number in (0, 17, 39)]

    with_engine(work)


def test_a_closed_iterator_aborts_and_its_id_is_free_again(with_engine: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        params = asking(RequestOutputKind.DELTA, max_tokens=ENDLESS)
        stream = engine.generate("leave early", params, "same")
        assert not (await anext(stream)).finished
        await stream.aclose()
        while engine._engine.client.health().num_running:
            await asyncio.sleep(0)
        assert await items(engine, asking(RequestOutputKind.FINAL_ONLY), "same")

    with_engine(work)


def test_an_aborted_request_says_so_in_its_last_item(with_engine: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        stream = engine.generate("abort me", asking(RequestOutputKind.CUMULATIVE, max_tokens=ENDLESS), "doomed")
        await anext(stream)
        await engine.abort("doomed")
        *_, last = [item async for item in stream]
        assert last.finished
        assert last.outputs[0].finish_reason == "abort"
        await engine.abort("nobody")

    with_engine(work)


def test_an_id_in_use_and_a_bad_prompt_are_refused(with_engine: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        first = engine.generate("x", asking(RequestOutputKind.DELTA, max_tokens=ENDLESS), "twice")
        await anext(first)
        with pytest.raises(RequestError, match="'twice' is in use"):
            await anext(engine.generate("y", asking(RequestOutputKind.DELTA), "twice"))
        await first.aclose()
        with pytest.raises(InputError, match="the prompt is empty"):
            await anext(engine.generate("", asking(RequestOutputKind.DELTA), "empty"))

    with_engine(work)


def test_embeddings_are_those_of_the_blocking_class(tiny: Path, with_engine: Run) -> None:
    with LLM(tiny, kv_cache_memory="4MiB") as llm:
        expected = llm.embed("embed me", pooling="mean", use_tqdm=False)[0].outputs.embedding

    async def work(engine: AsyncLLM) -> None:
        got = await engine.embed("embed me", "e", pooling="mean")
        assert got.outputs.embedding == expected
        assert (await engine.get_tokenizer()).decode(got.prompt_token_ids) == "embed me"
        await engine.check_health()

    with_engine(work)


def test_it_is_made_from_engine_args_and_belongs_to_one_loop(tiny: Path) -> None:
    arguments = AsyncEngineArgs(model=str(tiny), enforce_eager=True, kv_cache_memory="4MiB")
    assert "enforce_eager=True" in repr(arguments)
    engine = AsyncLLM.from_engine_args(arguments)
    assert repr(engine) == "AsyncLLM(model='tiny', max_model_len=256)"
    assert asyncio.run(items(engine, asking(RequestOutputKind.FINAL_ONLY)))
    with pytest.raises(UsageError, match="belongs to another event loop"):
        asyncio.run(items(engine, asking(RequestOutputKind.FINAL_ONLY)))
    engine.shutdown()
    engine.close()
