"""`LLM` on a tiny model: what programs written for vLLM expect of `generate`, `chat` and `embed`."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.tiny_model import CONTEXT, HIDDEN, write_tiny_model

from plait import LLM, InputError, ModelError, RequestOutput, SamplingParams, UsageError
from plait.core.errors import EngineStopped

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}
LONG = "A beginning that is longer than a block of the cache, so that it is shared. "


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(tiny: Path) -> Iterator[LLM]:
    with LLM(tiny, kv_cache_memory="4MiB", max_num_seqs=16) as made:
        yield made


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [choice.token_ids for output in outputs for choice in output.outputs]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("plait")]


# generate


def test_results_are_in_the_order_of_the_prompts_and_complete(llm: LLM) -> None:
    prompts = [f"prompt number {n}" for n in range(40)]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [bytes(output.prompt_token_ids).decode() for output in outputs] == prompts
    assert all(output.finished and output.prompt_logprobs is None for output in outputs)
    for output in outputs:
        (choice,) = output.outputs
        assert (choice.index, choice.finish_reason, choice.stop_reason) == (0, "length", None)
        assert len(choice.token_ids) == 8
        assert choice.text
        assert choice.finished()
        assert (choice.logprobs, choice.cumulative_logprob) == (None, None)


def test_a_prompt_gets_the_same_answer_alone_in_company_and_as_tokens(llm: LLM) -> None:
    alone = llm.generate("the same", GREEDY, use_tqdm=False)
    company = llm.generate([f"other {n}" for n in range(30)] + ["the same"], GREEDY, use_tqdm=False)
    as_tokens = llm.generate({"prompt_token_ids": list(b"the same")}, GREEDY, use_tqdm=False)
    assert tokens_of(alone) == tokens_of(company[-1:]) == tokens_of(as_tokens)
    assert as_tokens[0].prompt is None


def test_parameters_may_be_one_for_each_prompt(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 5, 3)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(tokens) for tokens in tokens_of(outputs)] == [1, 5, 3]


def test_a_batch_larger_than_the_queue_shares_its_beginnings(llm: LLM) -> None:
    prompts = [f"{LONG}{n:03}" for n in range(300)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    # Whoever starts in the first step finds nothing yet.
    assert sum(output.num_cached_tokens >= 64 for output in outputs) > 280


@pytest.mark.parametrize(
    ("prompts", "params", "said"),
    [
        (["a", "b"], [GREEDY], "1 sampling_params for 2 prompts"),
        (["a", "b"], [GREEDY, 3], "sampling_params 1 is of type int"),
        (["a", "b"], 3, "sampling_params is of type int"),
        (["a"], SamplingParams(allowed_token_ids=[99999]), "prompt 0: allowed_token_ids holds token 99999"),
        (["a", "x" * CONTEXT], GREEDY, f"prompt 1 has {CONTEXT} tokens but the model holds {CONTEXT}"),
        (["a", [1, 99999]], GREEDY, "prompt 1: prompt holds token 99999"),
        (["a"], SamplingParams(stop_token_ids=[99999]), "prompt 0: stop_token_ids holds token 99999"),
        (["x" * (CONTEXT - 2)], SamplingParams(min_tokens=5), "prompt 0 .* min_tokens is 5"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(llm: LLM, prompts: object, params: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]


def test_priorities_must_fit_too(llm: LLM) -> None:
    with pytest.raises(InputError, match="1 priorities for 2 prompts"):
        llm.generate(["a", "b"], GREEDY, priority=[1], use_tqdm=False)
    assert len(llm.generate(["a", "b"], GREEDY, priority=[1, 0], use_tqdm=False)) == 2


def test_an_answer_ends_where_the_context_does(llm: LLM) -> None:
    (output,) = llm.generate("x" * (CONTEXT - 5), SamplingParams(temperature=0, ignore_eos=True), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 5
    assert output.outputs[0].finish_reason == "length"
    whole = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    assert len(tokens_of(llm.generate("x" * 200, whole, use_tqdm=False))[0]) == CONTEXT - 200


def test_stops_are_reported(llm: LLM) -> None:
    (free,) = llm.generate("stop me", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True), use_tqdm=False)
    token = free.outputs[0].token_ids[6]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop_token_ids=[token])
    (output,) = llm.generate("stop me", params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason == token
    assert output.outputs[0].token_ids[-1] == token


def test_log_probabilities_come_as_dicts_with_the_token_first(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=5, max_tokens=6, logprobs=3, ignore_eos=True)
    choice = llm.generate("how likely", params, use_tqdm=False)[0].outputs[0]
    assert choice.logprobs is not None
    assert len(choice.logprobs) == 6
    for token, entries in zip(choice.token_ids, choice.logprobs, strict=True):
        assert next(iter(entries)) == token
        assert 3 <= len(entries) <= 4
        ranks = sorted(entry.rank for entry in entries.values() if entry.rank is not None)
        assert ranks == [1, 2, 3]
    total = sum(entries[token].logprob for token, entries in zip(choice.token_ids, choice.logprobs, strict=True))
    assert choice.cumulative_logprob == pytest.approx(total)


def test_prompt_tokens_are_scored_as_they_would_be_as_output(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=12, logprobs=2, ignore_eos=True)
    (said,) = llm.generate(f"{LONG}score", greedy, use_tqdm=False)
    tokens = [*said.prompt_token_ids, *said.outputs[0].token_ids]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2, n=2, ignore_eos=True)
    (scored,) = llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)
    assert scored.prompt_logprobs is not None
    assert len(scored.prompt_logprobs) == len(tokens)
    assert scored.prompt_logprobs[0] is None
    assert scored.prompt_logprobs[-12:] == said.outputs[0].logprobs
    assert scored.num_cached_tokens == 0, "what is cached cannot be scored"
    assert len(scored.outputs) == 2
    (one,) = llm.generate([5], params, use_tqdm=False)
    assert one.prompt_logprobs == [None]
    assert said.prompt_logprobs is None


def test_only_allowed_tokens_are_drawn_and_each_company_member_has_its_own(llm: LLM) -> None:
    sets = [[65, 66, 67], [97], list(range(48, 58))]
    params = [SamplingParams(n=2, seed=3, max_tokens=9, allowed_token_ids=allowed) for allowed in sets]
    outputs = llm.generate(["same", "same", "same"], params, use_tqdm=False)
    for output, allowed in zip(outputs, sets, strict=True):
        assert all(set(choice.token_ids) <= set(allowed) for choice in output.outputs)
    free = llm.generate("same", SamplingParams(temperature=0, max_tokens=1, logprobs=20), use_tqdm=False)[0].outputs[0]
    assert free.logprobs is not None
    best = list(free.logprobs[0])[1:4]
    greedy = SamplingParams(temperature=0, max_tokens=1, allowed_token_ids=best)
    assert tokens_of(llm.generate("same", greedy, use_tqdm=False)) == [best[:1]]


def test_without_detokenizing_there_are_tokens_only(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, detokenize=False, ignore_eos=True)
    choice = llm.generate("no text", params, use_tqdm=False)[0].outputs[0]
    assert (choice.text, len(choice.token_ids)) == ("", 4)


# n


def test_choices_are_told_apart_by_index_and_each_is_the_same_in_any_company(llm: LLM) -> None:
    def ask(n: int) -> list[list[int]]:
        params = SamplingParams(n=n, temperature=1, seed=11, max_tokens=10, ignore_eos=True)
        (output,) = llm.generate(f"{LONG} choose", params, use_tqdm=False)
        assert [choice.index for choice in output.outputs] == list(range(n))
        return [choice.token_ids for choice in output.outputs]

    eight = ask(8)
    assert len({tuple(tokens) for tokens in eight}) > 4
    assert ask(1) == eight[:1]
    assert ask(3) == eight[:3]
    assert ask(40)[:8] == eight, "more choices than may run at once"


def test_greedy_choices_are_equal(llm: LLM) -> None:
    params = SamplingParams(n=5, temperature=0, max_tokens=10, ignore_eos=True)
    outputs = llm.generate(["short", f"{LONG} long"], params, use_tqdm=False)
    for output in outputs:
        assert len({tuple(choice.token_ids) for choice in output.outputs}) == 1
        assert len({choice.text for choice in output.outputs}) == 1


# chat


def test_a_conversation_is_rendered_by_the_template(llm: LLM) -> None:
    (output,) = llm.chat([{"role": "user", "content": "hello"}], GREEDY, use_tqdm=False)
    assert output.prompt == "<|user|>hello<|end|><|assistant|>"
    again = llm.generate(output.prompt, GREEDY, use_tqdm=False)
    assert tokens_of([output]) == tokens_of(again)


def test_many_conversations_are_answered_in_order(llm: LLM) -> None:
    outputs = llm.chat([[{"role": "user", "content": word}] for word in ("a", "b", "c")], GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == [f"<|user|>{word}<|end|><|assistant|>" for word in "abc"]


def test_a_final_message_may_be_continued(llm: LLM) -> None:
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "I am "}]
    (output,) = llm.chat(chat, GREEDY, False, continue_final_message=True, add_generation_prompt=False)
    assert output.prompt == "<|user|>hello<|end|><|assistant|>I am"


def test_the_template_may_be_another_and_have_variables(llm: LLM) -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ extra }}"
    outputs = llm.chat(
        [{"role": "user", "content": "x"}],
        GREEDY,
        False,
        chat_template=template,
        chat_template_kwargs={"extra": "!"},
    )
    assert outputs[0].prompt == "[x]!"


@pytest.mark.parametrize(
    ("messages", "more", "said"),
    [
        ("hello", {}, "messages is of type str"),
        ([], {}, "the conversation: messages is empty"),
        ([[{"role": "user", "content": "a"}], [{"role": "robot", "content": "a"}]], {}, "conversation 1: "),
        ([{"role": "user", "content": "a"}], {"continue_final_message": True}, "are both True"),
        ([{"role": "user", "content": " "}], CONTINUED, "the last message has no text"),
        ([{"role": "user", "content": "<|end|>"}], CONTINUED, "spells control tokens"),
        ([{"role": "user", "content": "a"}], {"chat_template": "{% if %}"}, "the chat template cannot be compiled"),
        ([{"role": "user", "content": "a"}], {"chat_template_kwargs": {"tools": 1}}, "'tools', which has an argument"),
    ],
)
def test_a_faulty_conversation_is_named(llm: LLM, messages: object, more: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        llm.chat(messages, GREEDY, False, **more)  # type: ignore[arg-type]


# embed


def test_an_embedding_has_length_one_and_the_models_width(llm: LLM) -> None:
    outputs = llm.embed(["one text", "another"], use_tqdm=False)
    for output in outputs:
        vector = output.outputs.embedding
        assert output.outputs.hidden_size == len(vector) == HIDDEN
        assert math.fsum(number * number for number in vector) == pytest.approx(1.0)
        assert output.finished
    assert outputs[0].outputs.embedding != outputs[1].outputs.embedding


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_an_embedding_is_the_same_alone_and_beside_others(llm: LLM, pooling: str) -> None:
    text = f"{LONG} embed me"
    alone = llm.embed(text, pooling=pooling, normalize=False, use_tqdm=False)[0].outputs.embedding
    with ThreadPoolExecutor() as pool:
        busy = pool.submit(llm.generate, [f"{LONG}{n}" for n in range(40)], GREEDY, use_tqdm=False)
        company = llm.embed(
            [*(f"{LONG}{n}" for n in range(20)), text], pooling=pooling, normalize=False, use_tqdm=False
        )
        assert len(busy.result()) == 40
    assert company[-1].outputs.embedding == alone


def test_a_mean_reads_no_cache_and_the_last_may(llm: LLM) -> None:
    text = f"{LONG} twice"
    for pooling, cached in (("mean", False), ("last", True)):
        first = llm.embed(text, pooling=pooling, use_tqdm=False)[0]
        second = llm.embed(text, pooling=pooling, use_tqdm=False)[0]
        assert first.outputs.embedding == second.outputs.embedding
        assert (second.num_cached_tokens > 0) == cached


def test_a_prompt_that_fills_the_context_can_be_embedded(llm: LLM) -> None:
    assert llm.embed("x" * CONTEXT, pooling="mean", use_tqdm=False)[0].outputs.hidden_size == HIDDEN
    with pytest.raises(InputError, match=f"prompt 0 has {CONTEXT + 1} tokens but the model holds {CONTEXT}; shorten"):
        llm.embed("x" * (CONTEXT + 1), use_tqdm=False)
    with pytest.raises(InputError, match="pooling is 'max'; choose one of last, mean"):
        llm.embed("x", pooling="max", use_tqdm=False)


# life


def test_threads_may_share_one(llm: LLM) -> None:
    expected = tokens_of(llm.generate([f"thread {n}" for n in range(8)], GREEDY, use_tqdm=False))
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda n: llm.generate(f"thread {n}", GREEDY, use_tqdm=False), range(8))
    assert [tokens_of(result)[0] for result in results] == expected


class Interrupting:
    """A bar that interrupts the process at the first finished request."""

    format_dict = {"elapsed": 1.0}  # noqa: RUF012 - as tqdm has it
    was_closed = False
    num_updates = 0

    def __init__(self, **said: object) -> None:
        assert said["total"] == 60

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        assert "tok/s" in s

    def update(self, n: float | None = 1) -> None:
        Interrupting.num_updates += 1
        if Interrupting.num_updates == 1:
            os.kill(os.getpid(), signal.SIGINT)

    def close(self) -> None:
        Interrupting.was_closed = True


def test_an_interrupt_ends_the_call_and_not_the_model(tiny: Path) -> None:
    with LLM(tiny, kv_cache_memory="4MiB", max_num_seqs=2) as llm:
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["x"] * 60, params, use_tqdm=Interrupting)
        assert Interrupting.was_closed
        assert Interrupting.num_updates < 60
        assert len(tokens_of(llm.generate("again", GREEDY, use_tqdm=False))[0]) == 8


def test_a_closed_model_answers_nobody_and_leaves_no_thread(tiny: Path) -> None:
    before = threads()
    llm = LLM(tiny, kv_cache_memory="4MiB")
    assert len(threads()) > len(before)
    llm.shutdown()
    llm.close()
    assert threads() == before
    with pytest.raises(EngineStopped, match="was closed"):
        llm.generate("x", GREEDY, use_tqdm=False)


def test_a_forgotten_model_is_closed_too(tiny: Path) -> None:
    before = threads()
    llm = LLM(tiny, kv_cache_memory="4MiB")
    del llm
    gc.collect()
    assert threads() == before


def test_a_model_that_one_of_its_own_threads_finds_forgotten_is_closed(tiny: Path) -> None:
    """A collection happens in whatever thread makes objects."""
    before = threads()
    llm = LLM(tiny, kv_cache_memory="4MiB")
    loop, started = llm._service._loop, threads()
    knot: list[object] = [llm]
    knot.append(knot)
    gc.disable()
    try:
        del llm, knot
        assert threads() == started
        loop.call_soon_threadsafe(gc.collect)
        ends_s = time.monotonic() + 20
        while threads() != before and time.monotonic() < ends_s:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert threads() == before


def test_closing_ends_calls_of_other_threads(tiny: Path) -> None:
    llm = LLM(tiny, kv_cache_memory="4MiB", max_num_seqs=2, executor="reference")
    started = threading.Event()

    class Bar(Interrupting):
        def update(self, n: float | None = 1) -> None:
            started.set()

    with ThreadPoolExecutor() as pool:
        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        call = pool.submit(llm.generate, ["x"] * 60, params, use_tqdm=Bar)
        assert started.wait(60)
        llm.close()
        with pytest.raises(EngineStopped):
            call.result(60)


def test_a_model_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"nowhere\.gguf"):
        LLM("nowhere.gguf")


def test_options_that_contradict_the_model_are_said_in_keywords(tiny: Path) -> None:
    with pytest.raises(UsageError, match=r"^max_model_len is 9999 but the model was made for 256 tokens"):
        LLM(tiny, max_model_len=9999)


def test_it_shows_what_it_is(llm: LLM) -> None:
    assert repr(llm) == "LLM(model='tiny', max_model_len=256)"
    assert llm.max_model_len == CONTEXT
    assert llm.get_default_sampling_params() == SamplingParams()


def test_the_tokenizer_has_the_names_of_transformers(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    chat = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>hi<|end|><|assistant|>"
    ids = tokenizer.apply_chat_template(chat)
    assert isinstance(ids, list)
    assert tokenizer.decode(ids) == "<|user|>hi<|end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hi"
    assert tokenizer.eos_token_id == 257
    assert len(tokenizer) == tokenizer.vocab_size == 262


def test_the_bar_shows_tokens_in_and_out(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    shown = capsys.readouterr()
    assert "Processed prompts: 100%" in shown.err
    assert "2/2" in shown.err
    assert "tok/s, out: " in shown.err
    assert not shown.out
    llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""
