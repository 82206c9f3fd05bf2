"""GGUF: facts from the header of a GGUF file, which may be all that has arrived of it.

Owns the metadata keys of the architectures that are understood and what they say about each layer. States of GGUF
models are in f32, as the engines that use such files keep them.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from plait.inspect.config import BY_HAND
from plait.inspect.facts import ModelFacts, Parameters
from plait.inspect.layers import KeysValues, Layer, NumberType, Part, State
from plait.inspect.readers.attention import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, every
from plait.inspect.served import served_from_gguf
from plait.model.facts import Facts
from plait.model.parts import GroupKind
from plait.weights.gguf_outline import GgufOutline, TensorOutline, read_outline

_PLAIN = (
    *("llama", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "phi2", "phi3", "gemma"),
    *("olmo", "olmoe", "starcoder2", "stablelm", "command-r", "glm4", "glm4moe", "chatglm", "granite", "granitemoe"),
    *("internlm2", "minicpm", "smollm3", "deci", "exaone", "nemotron", "bitnet", "ernie4_5", "ernie4_5-moe"),
    *("hunyuan-dense", "seed_oss", "gptneox", "baichuan", "orion", "arcee", "minimax-m2", "apertus"),
)
_WINDOW_EVERY = {"gemma2": 2, "gpt-oss": 2, "cohere2": 4, "olmo2": 4, "exaone4": 4, "gemma3n": 5, "gemma3": 6}
"""Each layer of this number looks at everything, the others at a window, where the file does not say which do."""
_OTHER_ATTENTION = ("deepseek2", "gemma4", "llama4")
_QWEN_STATES = ("qwen3next", "qwen35", "qwen35moe")
_STATES = (
    *("mamba", "mamba2", "falcon-mamba", "jamba", "nemotron_h", "nemotron_h_moe", "granitehybrid", "lfm2", "lfm2moe"),
    *("falcon-h1", "rwkv6", "rwkv7", *_QWEN_STATES),
)
KNOWN = (*_PLAIN, *_WINDOW_EVERY, *_OTHER_ATTENTION, *_STATES)


_PARTS = (
    ("embedding", ("token_embd.", "output.", "per_layer_token_embd.", "position_embd.")),
    ("attention", (".attn_",)),
    ("states", (".ssm_", ".shortconv.", ".time_mix_")),
    ("experts", ("_exps.",)),
    ("feed-forward", (".ffn_", ".channel_mix_")),
)


def facts_from_gguf(path: Path) -> ModelFacts:
    outline = read_outline(path)
    return served_from_gguf(facts_from_outline(outline, path.name, str(path)), outline)


def facts_from_outline(outline: GgufOutline, name: str, source: str) -> ModelFacts:
    facts = Facts("GGUF metadata", outline.metadata)
    arch = facts.values.get("general.architecture")
    if not isinstance(arch, str) or arch not in KNOWN:
        close = difflib.get_close_matches(str(arch), KNOWN, n=1)
        guess = f" (the nearest known one is {close[0]})" if close else ""
        raise Facts(source, {}).error(f"what an architecture {arch!r} keeps in memory is not known{guess}; {BY_HAND}")
    own = Facts(facts.source, {key.removeprefix(f"{arch}."): value for key, value in outline.metadata.items()})
    # Layers that guess further tokens stand behind the model's own, and keep nothing unless they are used.
    count = own.integer("block_count", 1, MAX_LAYERS)
    count = max(1, count - own.integer("nextn_predict_layers", 0, count, 0))
    tokens = outline.metadata.get("tokenizer.ggml.tokens")
    sizes: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for tensor in outline.tensors:
        sizes[tensor.format] += tensor.num_bytes
        numbers[tensor.format] += tensor.num_elements
    layers = tuple(_layers(own, arch, count))
    return ModelFacts(
        name=name,
        family=arch,
        source=source,
        num_layers=count,
        hidden=own.integer("embedding_length", 1, MAX_WIDTH),
        layers=layers,
        max_tokens=own.integer("context_length", 1, MAX_TOKENS),
        attention_width=_attention_width(own, layers),
        vocab_size=len(tokens) if isinstance(tokens, list) else 0,
        numbers=NumberType.F32,
        parameters=_parameters(own, outline.tensors),
        weight_bytes=sum(sizes.values()) or None,
        formats=tuple((kind, numbers[kind], size) for kind, size in sizes.most_common()),
        parts=_parts(outline.tensors),
    )


def _parts(tensors: Sequence[TensorOutline]) -> tuple[tuple[str, int, int], ...]:
    """Numbers and bytes of each part of the model; norms and the like are the rest."""
    found = {part: [0, 0] for part, _ in _PARTS} | {"others": [0, 0]}
    for tensor in tensors:
        # Norms have names of the part that they stand before.
        marked = [
            part for part, marks in _PARTS if len(tensor.shape) > 1 and any(mark in tensor.name for mark in marks)
        ]
        sums = found[marked[0] if marked else "others"]
        sums[0] += tensor.num_elements
        sums[1] += tensor.num_bytes
    return tuple((part, numbers, size) for part, (numbers, size) in found.items() if numbers)


def _parameters(facts: Facts, tensors: Sequence[TensorOutline]) -> Parameters | None:
    if not tensors:
        return None
    experts = facts.integer("expert_count", 0, MAX_WIDTH, 0)
    used = facts.integer("expert_used_count", 0, MAX_WIDTH, experts)
    tied = all(tensor.name != "output.weight" for tensor in tensors)
    active = 0
    for tensor in tensors:
        if tensor.name == "token_embd.weight" and not tied:
            continue
        sent = "_exps." in tensor.name and experts
        active += tensor.num_elements * used // experts if sent else tensor.num_elements
    return Parameters(sum(tensor.num_elements for tensor in tensors), active)


def _layers(facts: Facts, arch: str, count: int) -> list[Layer]:
    if arch == "deepseek2":
        width = facts.integer("attention.kv_lora_rank", 1, MAX_WIDTH)
        width += facts.integer("rope.dimension_count", 1, MAX_WIDTH)
        return [KeysValues(GroupKind.FULL, 1, width, 0, label="latent", splits=False)] * count
    heads = _per_layer(facts, "attention.head_count_kv", count)
    slides = _slides(facts, arch, count)
    state = _state(facts, arch)
    layers: list[Layer] = []
    for place in range(count):
        if _has_state(facts, arch, place, heads[place]):
            if state is None:
                raise facts.error(f"layer {place} keeps a state, but the sizes of states are missing; {BY_HAND}")
            layers.append(state)
        if heads[place] and _attends(facts, arch, place):
            layers.append(_attention(facts, arch, heads[place], slides[place]))
    shared = facts.integer("attention.shared_kv_layers", 0, count, 0)
    return layers[: len(layers) - shared] if shared < len(layers) else layers


def _per_layer(facts: Facts, key: str, count: int) -> list[int]:
    """A number for each layer, from one number or from a list."""
    value = facts.values.get(key)
    if isinstance(value, list):
        if len(value) < count or not all(isinstance(one, int) and one >= 0 for one in value):
            raise facts.error(f"{key} must be a number or a list of {count} numbers")
        return [int(one) for one in value[:count]]
    default = 0 if not facts.has("attention.head_count") else None
    if default is None and not facts.has(key):
        key = "attention.head_count"
    return [facts.integer(key, 0, MAX_WIDTH, default)] * count


def _slides(facts: Facts, arch: str, count: int) -> list[bool]:
    """Which layers look at a window or a chunk only."""
    pattern = facts.values.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) >= count:
        return [bool(mark) for mark in pattern[:count]]
    period = _WINDOW_EVERY.get(arch)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        period = pattern
    if arch == "llama4":
        period = 4
    size = facts.integer("attention.sliding_window", 0, MAX_TOKENS, 0)
    if period is None or (not size and arch != "llama4"):
        return [False] * count
    return [word == "slides" for word in every(period, period - 1, count, "full", "slides")]


def _attention(facts: Facts, arch: str, heads: int, slides: bool) -> KeysValues:
    hidden = facts.integer("embedding_length", 1, MAX_WIDTH)
    queries = max(_per_layer(facts, "attention.head_count", facts.integer("block_count", 1, MAX_LAYERS)))
    suffix = "_swa" if slides and facts.has("attention.key_length_swa") else ""
    keys = facts.integer(f"attention.key_length{suffix}", 1, MAX_WIDTH, max(1, hidden // max(1, queries)))
    values = facts.integer(f"attention.value_length{suffix}", 1, MAX_WIDTH, keys)
    if not slides:
        return KeysValues(GroupKind.FULL, heads, keys, values)
    if arch == "llama4":
        size = facts.integer("attention.chunk_size", 1, MAX_TOKENS, 8192)
        return KeysValues(GroupKind.CHUNKED, heads, keys, values, size)
    return KeysValues(GroupKind.WINDOW, heads, keys, values, facts.integer("attention.sliding_window", 1, MAX_TOKENS))


def _attends(facts: Facts, arch: str, place: int) -> bool:
    if arch in _QWEN_STATES:
        period = facts.integer("full_attention_interval", 1, MAX_LAYERS, 4)
        return (place + 1) % period == 0
    return True


def _has_state(facts: Facts, arch: str, place: int, heads: int) -> bool:
    if arch not in _STATES:
        return False
    if arch == "falcon-h1":
        return True
    if arch in _QWEN_STATES:
        return not _attends(facts, arch, place)
    if arch.startswith("nemotron_h"):
        width = facts.values.get("feed_forward_length")
        return heads == 0 and not (isinstance(width, list) and place < len(width) and width[place])
    return heads == 0


def _state(facts: Facts, arch: str) -> State | None:
    hidden = facts.integer("embedding_length", 1, MAX_WIDTH)
    if facts.has("shortconv.l_cache"):
        part = Part("conv", hidden * (facts.integer("shortconv.l_cache", 2, MAX_WIDTH) - 1), NumberType.F32)
        return State("short conv", (part,), hidden)
    if facts.has("wkv.head_size"):
        head = facts.integer("wkv.head_size", 1, MAX_WIDTH)
        shifts = facts.integer("token_shift_count", 1, 8, 2)
        parts = (Part("shift", shifts * hidden, NumberType.F32), Part("wkv", hidden * head, NumberType.F32))
        return State("rwkv", parts, hidden // head)
    if not facts.has("ssm.inner_size"):
        return None
    inner, state = facts.integer("ssm.inner_size", 1, MAX_WIDTH), facts.integer("ssm.state_size", 1, MAX_WIDTH)
    groups = facts.integer("ssm.group_count", 0, MAX_WIDTH, 0)
    columns = (inner + 2 * groups * state) * (facts.integer("ssm.conv_kernel", 1, MAX_WIDTH) - 1)
    label = "gated delta" if arch.startswith("qwen") else "mamba2" if groups else "mamba"
    parts = (Part("conv", columns, NumberType.F32), Part("ssm", inner * state, NumberType.F32))
    return State(label, parts, groups or inner)


def _attention_width(facts: Facts, layers: Sequence[Layer]) -> int:
    attention = [layer for layer in layers if isinstance(layer, KeysValues)]
    if not attention:
        return 0
    return max(_per_layer(facts, "attention.head_count", facts.integer("block_count", 1, MAX_LAYERS))) * max(
        layer.head_dim_k for layer in attention
    )
