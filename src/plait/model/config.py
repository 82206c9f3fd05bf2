"""Config: from what a model file says about itself to a `ModelConfig`.

Owns which family reads which file: by GGUF's `general.architecture` or Hugging Face's `model_type`. Unknown names are
refused with a list of what is supported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from plait.model.facts import Facts
from plait.model.families import ALL_FAMILIES
from plait.model.gguf_reading import GgufModel
from plait.model.hf_reading import check_class, refuse_quantization
from plait.model.model_config import ModelConfig

__all__ = ["GGUF_ARCHITECTURES", "HF_MODEL_TYPES", "ModelConfig", "config_from_gguf", "config_from_hf"]

_HF_NAMES = {"gemma3_text": "gemma3"}
"""Where `model_type` is not the family's name."""
HF_MODEL_TYPES = {
    **{family.name: family.hf for family in ALL_FAMILIES if family.name not in _HF_NAMES.values()},
    **{name: family.hf for name, of in _HF_NAMES.items() for family in ALL_FAMILIES if family.name == of},
}
"""By model_type."""
GGUF_ARCHITECTURES = {
    family.gguf_name or family.name: family.gguf for family in ALL_FAMILIES if family.gguf is not None
}
"""By general.architecture."""
_WITH_EXPERTS = ("moe", "mixtral", "deepseek", "dbrx", "gpt_oss", "gpt-oss", "grok", "jamba", "llama4")
_TEXT_PARTS = {"gemma3": ("gemma3_text", "Gemma3ForConditionalGeneration")}
"""Models that also read images, of which the text part is read: its model_type, and the class of the whole."""
_WITH_IMAGES = ("mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "mllama", "paligemma", "idefics3")


def config_from_gguf(
    metadata: Mapping[str, object],
    tensor_names: Collection[str],
    rope_factors: Mapping[str, Sequence[float]] | None = None,
) -> ModelConfig:
    """Read GGUF metadata. `rope_factors`: what the tensors that list rope factors hold, by name, if there are any."""
    facts = Facts("GGUF metadata", metadata)
    arch = facts.word("general.architecture", GGUF_ARCHITECTURES, "architecture")
    return GGUF_ARCHITECTURES[arch](GgufModel(facts, arch, tensor_names, rope_factors or {}))


def config_from_hf(config: Mapping[str, object], num_tokens: int | None = None) -> ModelConfig:
    """Read Hugging Face's config.json. A missing key has the default that `transformers` gives it.

    It says how many rows the token tables have, not how many tokens there are. Rows behind `num_tokens` are padding;
    None: every row counts as a token.
    """
    named = Facts("config.json", _text_part(config))
    _refuse_kinds(named)
    form = HF_MODEL_TYPES[named.word("model_type", HF_MODEL_TYPES, "model_type")]
    refuse_quantization(named)
    check_class(named, form.class_name)
    read = form.read(Facts(named.source, {**form.defaults, **named.values}))
    if num_tokens is None or num_tokens >= read.vocab_size:
        return read
    return replace(read, vocab_size=num_tokens, padding_rows=read.vocab_size - num_tokens)


def _text_part(config: Mapping[str, object]) -> Mapping[str, object]:
    """The configuration itself, or that of its text model."""
    whole = Facts("config.json", config)
    part = _TEXT_PARTS.get(str(config.get("model_type")))
    if part is None:
        return config
    model_type, class_name = part
    check_class(whole, class_name)
    refuse_quantization(whole)
    text = whole.table("text_config")
    if text is None:
        raise whole.error("text_config is missing")
    # The head belongs to the whole model, so that the whole says whether it is tied.
    tie = {key: config[key] for key in ("tie_word_embeddings",) if whole.has(key)}
    return {**text.values, **tie, "model_type": model_type, "architectures": None}


def _refuse_kinds(facts: Facts) -> None:
    """Names that many people try, with a better reason than that they are unknown."""
    name = facts.values.get("model_type")
    if not isinstance(name, str) or name in HF_MODEL_TYPES:
        return
    if any(part in name for part in _WITH_EXPERTS):
        raise facts.error(
            f"model_type is {name[:60]!r}: this mixture of experts is not supported; supported: "
            f"{', '.join(HF_MODEL_TYPES)}"
        )
    if name in _WITH_IMAGES:
        raise facts.error(
            f"model_type is {name!r}: models that also read images are not supported; use a text model ("
            f"{', '.join(HF_MODEL_TYPES)}), or a GGUF file of the text part alone"
        )
