"""Goldens: what `transformers` computes for a tiny model of every family, kept small enough to commit.

Owns how `tests/data/goldens/families.npz` is made and checked. Configurations stand in `families.json` beside it;
weights follow from each tensor's name and shape by `weights_of`, which tests repeat.
Invariant: every number comes from transformers' own models in float32, nothing from Plait.

    pip install torch==2.13.0 transformers==5.24.0
    python scripts/make_family_goldens.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "data" / "goldens" / "families.json"
GOLDENS = CASES.with_suffix(".npz")

NUM_PROMPT, NUM_GREEDY = 24, 64
NUM_ROWS = 6
MAX_ERROR = 1e-5
"""Largest difference `--check` accepts, as a fraction of the max abs logit."""

EXPERT_NAMES = {
    "mixtral": ("block_sparse_moe.experts.{}.{}.weight", "w1", "w3", "w2"),
    "qwen3_moe": ("mlp.experts.{}.{}.weight", "gate_proj", "up_proj", "down_proj"),
}
"""In a checkpoint: an expert's matrix, and what gate, up and down are called."""

Floats = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[np.generic]]


def weights_of(name: str, shape: tuple[int, ...], around_zero: bool) -> Floats:
    """The weights of a tensor: uniform, from a generator that its name seeds. `around_zero`: of norms."""
    drawn = 2.0 * np.random.default_rng(crc32(name.encode())).random(shape) - 1.0
    if "norm" in name and name.endswith("weight"):
        return (0.4 * drawn + (0.0 if around_zero else 1.0)).astype(np.float32)
    if len(shape) == 1:
        return (0.5 * drawn).astype(np.float32)
    # Tables and heads are wide, so that the likeliest token is usually ahead of the second by much more than rounding.
    spread = 1.7 if "embed" in name else (5.0 if "lm_head" in name else 2.2) / np.sqrt(shape[1])
    return (spread * drawn).astype(np.float32)


def parameter_of(model_type: str, name: str, shape: tuple[int, ...], around_zero: bool) -> Floats:
    """The weights of a parameter. Experts that a checkpoint has apart stand in one parameter of a model: theirs are
    drawn by the names in the checkpoint.
    """
    prefix, stacked, part = name.partition(".mlp.experts.")
    if model_type == "mixtral" and name.endswith(".mlp.gate.weight"):
        return weights_of(name.replace(".mlp.", ".block_sparse_moe."), shape, around_zero)
    if not stacked or model_type not in EXPERT_NAMES:
        return weights_of(name, shape, around_zero)
    form, gate, up, down = EXPERT_NAMES[model_type]
    own = (gate, up) if part == "gate_up_proj" else (down,)
    of_one = (shape[1] // len(own), shape[2])
    return np.stack(
        [
            np.concatenate([weights_of(f"{prefix}.{form.format(expert, one)}", of_one, around_zero) for one in own])
            for expert in range(shape[0])
        ]
    )


def prompt_of(name: str, vocab_size: int) -> list[int]:
    drawn = np.random.default_rng(crc32(name.encode())).random(NUM_PROMPT)
    return [3 + int(number * (vocab_size - 3)) for number in drawn]


def build(config: Mapping[str, object]) -> torch.nn.Module:
    """The model with its made-up weights. Eager attention and experts, which are the definition of the others."""
    values = {key: value for key, value in config.items() if key != "model_type"}
    made = AutoConfig.for_model(str(config["model_type"]), **values)
    made._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(made, attn_implementation="eager", dtype=torch.float32)
    around_zero = str(config["model_type"]).startswith("gemma")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = parameter_of(str(config["model_type"]), name, tuple(weight.shape), around_zero)
            weight.copy_(torch.from_numpy(drawn))
    return model.eval()


def score(model: torch.nn.Module, tokens: list[int]) -> Floats:
    """Logits after every token."""
    with torch.inference_mode():
        return np.asarray(model(torch.tensor([tokens]), use_cache=False).logits[0].numpy(), np.float32)


def arrays_of(case: Mapping[str, object]) -> Arrays:
    config = case["config"]
    assert isinstance(config, dict)
    model = build(config)
    tokens = prompt_of(str(case["name"]), int(config["vocab_size"]))
    for _ in range(NUM_GREEDY):
        tokens.append(int(score(model, tokens)[-1].argmax()))
    logits = score(model, tokens)
    best = np.sort(logits, axis=1)[:, -2:]
    rows = np.linspace(0, len(tokens) - 1, NUM_ROWS).round().astype(np.int32)
    return {
        "tokens": np.asarray(tokens, np.int32),
        "argmax": logits.argmax(axis=1).astype(np.int32),
        "margin": (best[:, 1] - best[:, 0]).astype(np.float32),
        "max_abs": np.abs(logits).max(keepdims=True).reshape(1),
        "rows": rows,
        "logits": logits[rows],
    }


def compare(committed: Mapping[str, npt.NDArray[np.generic]], fresh: Arrays) -> list[str]:
    complaints = [f"{key}: only on one side" for key in sorted(set(committed) ^ set(fresh))]
    for key in sorted((set(committed) & set(fresh)) - {"versions"}):
        old, new = committed[key], fresh[key]
        limit = MAX_ERROR * float(np.asarray(fresh[key.split("/")[0] + "/max_abs"], np.float64)[0])
        if not np.allclose(old, new, rtol=0, atol=limit if np.issubdtype(new.dtype, np.floating) else 0):
            complaints.append(f"{key}: differs")
    return complaints


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make or check the golden logits of a tiny model of every family.")
    parser.add_argument("--check", action="store_true", help="recompute and compare; write nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    fresh: Arrays = {"versions": np.asarray(f"torch {torch.__version__}, transformers {transformers.__version__}")}
    for number, case in enumerate(json.loads(CASES.read_text(encoding="utf-8"))):
        fresh |= {f"{number}/{key}": array for key, array in arrays_of(case).items()}
    if options.check:
        with np.load(GOLDENS) as committed:
            complaints = compare(committed, fresh)
        print(*complaints, f"{len(complaints)} complaints", sep="\n")
        return 1 if complaints else 0
    np.savez_compressed(GOLDENS, **fresh)  # type: ignore[arg-type]
    print(f"wrote {GOLDENS.relative_to(ROOT)}, {GOLDENS.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
