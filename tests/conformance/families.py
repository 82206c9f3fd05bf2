"""A tiny model of every family: its configuration, its made-up weights, and what `transformers` computed with them.

Owns the weights as a Hugging Face checkpoint holds them and as a GGUF file does. The goldens come from
`scripts/make_family_goldens.py`, which builds the same weights by the same rule from each tensor's name and shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

from plait.core.clock import RealClock
from plait.exec.loading import LoadableExecutor
from plait.exec.scoring import LogitsTap, Scorer, Window
from plait.model.cache_layout import CacheLayout, plan_layout
from plait.model.cache_type import CacheType
from plait.model.config import config_from_hf
from plait.model.families import build_program
from plait.model.mixture_config import MixtureConfig
from plait.model.model_config import ModelConfig
from plait.model.program import Program, expected_weights, product_weights
from plait.weights.formats import F32
from plait.weights.hf_names import HF_NAMES, load_hf_weights
from plait.weights.stored import StoredTensor
from plait.weights.table import WeightTable

Floats = npt.NDArray[np.float32]

CASES_FILE = Path(__file__).parents[1] / "data" / "goldens" / "families.json"
TOKENS_PER_BLOCK = 8


@dataclass(frozen=True, slots=True, eq=False)
class FamilyCase:
    """`config` is a config.json. `longest`: the longest sequence that the model is loaded for."""

    number: int
    name: str
    config: Mapping[str, object]
    longest: int | None = None

    @property
    def model_type(self) -> str:
        return str(self.config["model_type"])

    def model_config(self) -> ModelConfig:
        config = config_from_hf(self.config)
        return config if self.longest is None else config.within(self.longest)


@dataclass(frozen=True, slots=True)
class FamilyGolden:
    """What `transformers` gave. `logits` are those of `rows`; `tokens` are a prompt and how it goes on greedily."""

    tokens: tuple[int, ...]
    argmax: npt.NDArray[np.int32]
    margin: Floats
    max_abs: float
    rows: npt.NDArray[np.int32]
    logits: Floats


@dataclass(frozen=True, slots=True, eq=False)
class FamilyModel:
    config: ModelConfig
    program: Program
    tensors: Mapping[str, Floats]
    """By their names in a Hugging Face checkpoint."""
    weights: WeightTable

    def layout(self, num_tokens: int) -> CacheLayout:
        """Memory for one sequence."""
        program = self.program
        page = plan_layout(program, memory_bytes=1 << 40, tokens_per_block=TOKENS_PER_BLOCK).page_bytes
        pages = len(program.cache_groups) * (-(-num_tokens // TOKENS_PER_BLOCK) + 1)
        return plan_layout(
            program, memory_bytes=pages * page, tokens_per_block=TOKENS_PER_BLOCK, cache_type=CacheType.F32
        )


def one_of_each(cases: list[FamilyCase]) -> list[FamilyCase]:
    """The last case of every family, which as a rule has most that is its own."""
    return list({case.model_type: case for case in cases}.values())


def _read_cases() -> list[FamilyCase]:
    read = json.loads(CASES_FILE.read_text(encoding="utf-8"))
    return [FamilyCase(number, one["name"], one["config"], one.get("longest")) for number, one in enumerate(read)]


CASES = _read_cases()


@cache
def golden_of(case: FamilyCase) -> FamilyGolden:
    with np.load(CASES_FILE.with_suffix(".npz")) as file:
        part = {
            key: file[f"{case.number}/{key}"] for key in ("tokens", "argmax", "margin", "max_abs", "rows", "logits")
        }
    return FamilyGolden(
        tuple(int(token) for token in part["tokens"]),
        part["argmax"],
        part["margin"],
        float(part["max_abs"][0]),
        part["rows"],
        part["logits"],
    )


def weights_of(name: str, shape: tuple[int, ...], around_zero: bool) -> Floats:
    """The rule of `scripts/make_family_goldens.py`."""
    drawn = 2.0 * np.random.default_rng(crc32(name.encode())).random(shape) - 1.0
    if "norm" in name and name.endswith("weight"):
        return (0.4 * drawn + (0.0 if around_zero else 1.0)).astype(np.float32)
    if len(shape) == 1:
        return (0.5 * drawn).astype(np.float32)
    spread = 1.7 if "embed" in name else (5.0 if "lm_head" in name else 2.2) / np.sqrt(shape[1])
    return (spread * drawn).astype(np.float32)


def family_model(case: FamilyCase) -> FamilyModel:
    config = case.model_config()
    program = build_program(config)
    expected = expected_weights(program)
    around_zero = case.model_type.startswith("gemma")
    tensors = {name: weights_of(name, shape, around_zero) for name, shape in _checkpoint_shapes(config, expected)}
    stored = {name: stored_tensor(name, array) for name, array in tensors.items()}
    return FamilyModel(config, program, tensors, load_hf_weights(stored, expected, config, Path("made-up"), "0" * 64))


def rounded_model(case: FamilyCase) -> FamilyModel:
    """The family at widths of whole groups, its products rounded to 8 bits at load and its head untied for that."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    own_width: dict[str, object] = {"head_dim": 32} if "head_dim" in case.config else {}
    if "moe_intermediate_size" in case.config:
        own_width["moe_intermediate_size"] = 160
    config = {key: value for key, value in case.config.items() if case.model_type != "phi3" or key != "rope_scaling"}
    model = family_model(FamilyCase(case.number, case.name, {**config, **sizes, **own_width}, case.longest))
    own = replace(model.config, tied_embeddings=False)
    program = build_program(own)
    sources, names = (product_weights(one) for one in (model.program, program))
    weights = model.weights.rounded("int8", dict(zip(names, sources, strict=True)), head=names[-1])
    return FamilyModel(own, program, model.tensors, weights)


def stored_tensor(name: str, array: Floats) -> StoredTensor:
    raw = np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8)
    return StoredTensor(name, array.shape, F32, 0, raw.nbytes, raw)


def _checkpoint_shapes(
    config: ModelConfig, expected: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a checkpoint's tensors. A family's own names go before those that all share."""
    names_of = HF_NAMES[config.family]
    first_names = {ours: name for name, ours in reversed(names_of.outside.items())}
    for ours in expected.keys() & first_names.keys():
        yield first_names[ours], expected[ours]
    for layer in range(config.num_layers):
        if config.mixture is not None and layer not in config.mixture.dense_layers:
            yield from _expert_shapes(config, config.mixture, f"model.layers.{layer}.")
        covered: set[str] = set()
        for name, parts in reversed(names_of.layer.items()):
            if ".experts." in name:
                continue
            ours_of = [f"layers.{layer}.{part}" for part in parts]
            if all(one in expected for one in ours_of) and covered.isdisjoint(ours_of):
                covered.update(ours_of)
                shapes = [expected[one] for one in ours_of]
                yield f"model.layers.{layer}.{name}", (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _expert_shapes(config: ModelConfig, mixture: MixtureConfig, layer: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A matrix for each expert; GPT-OSS has them together, on their side, gate and up in turns."""
    inner, hidden = mixture.ffn_hidden, config.hidden
    if config.family == "gpt_oss":
        of_all = {"gate_up_proj": (hidden, 2 * inner), "down_proj": (inner, hidden)}
        for name, (depth, columns) in of_all.items():
            yield f"{layer}mlp.experts.{name}", (mixture.experts, depth, columns)
            yield f"{layer}mlp.experts.{name}_bias", (mixture.experts, columns)
        return
    names = {
        "mixtral": {"w1": (inner, hidden), "w3": (inner, hidden), "w2": (hidden, inner)},
        "qwen3_moe": {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)},
    }[config.family]
    block = "block_sparse_moe" if config.family == "mixtral" else "mlp"
    for expert in range(mixture.experts):
        for name, shape in names.items():
            yield f"{layer}{block}.experts.{expert}.{name}.weight", shape


def logits_of(
    executor: LoadableExecutor, tap: LogitsTap, model: FamilyModel, tokens: tuple[int, ...], weights: WeightTable
) -> Floats:
    """Behind every token but the last, computed in chunks."""
    layout = model.layout(len(tokens))
    executor.load({"step": model.program}, weights, layout)
    try:
        scorer = Scorer(executor, layout, tap, RealClock())
        return np.concatenate([rows.logits.copy() for rows in scorer.rows(Window(tokens[:-1], tokens[1:]))])
    finally:
        executor.close()
