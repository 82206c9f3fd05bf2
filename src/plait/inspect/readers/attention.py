"""Attention: readers of layers that keep keys and values: of all tokens, of a window, of a chunk, or one latent vector.

Owns the keys and the default patterns of families whose layers are attention alone. A file that lists `layer_types` is
taken at its word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.inspect.layers import KeysValues, Layer
from plait.model.facts import Facts
from plait.model.parts import GroupKind

MAX_LAYERS = 10_000
MAX_WIDTH = 1 << 20
MAX_TOKENS = 1 << 28

_KINDS = {
    "full_attention": GroupKind.FULL,
    "attention": GroupKind.FULL,
    "global": GroupKind.FULL,
    "sliding_attention": GroupKind.WINDOW,
    "local": GroupKind.WINDOW,
    "chunked_attention": GroupKind.CHUNKED,
}


def num_layers(facts: Facts) -> int:
    return facts.integer("num_hidden_layers", 1, MAX_LAYERS)


def num_heads(facts: Facts) -> int:
    return facts.integer("num_attention_heads", 1, MAX_WIDTH)


def head_dim(facts: Facts) -> int:
    for key in ("head_dim", "attention_head_dim"):
        if facts.has(key):
            return facts.integer(key, 1, MAX_WIDTH)
    hidden, heads = facts.integer("hidden_size", 1, MAX_WIDTH), num_heads(facts)
    if hidden % heads:
        raise facts.error(f"hidden_size {hidden} does not divide into {heads} heads and head_dim is missing; add it")
    return hidden // heads


def kv_heads(facts: Facts) -> int:
    if facts.values.get("multi_query") is True and not facts.has("num_key_value_heads"):
        return 1
    return facts.integer("num_key_value_heads", 1, MAX_WIDTH, num_heads(facts))


def keys_values(facts: Facts, kind: GroupKind = GroupKind.FULL, window: int = 0) -> KeysValues:
    """One layer of ordinary attention."""
    dim = head_dim(facts)
    return KeysValues(kind, kv_heads(facts), dim, dim, window)


def window_of(facts: Facts) -> int:
    """Tokens of a sliding window; 0: there is none, or none that a sequence could outgrow."""
    if not facts.has("sliding_window"):
        return 0
    size = facts.integer("sliding_window", 1, MAX_TOKENS)
    longest = facts.integer("max_position_embeddings", 1, MAX_TOKENS, MAX_TOKENS)
    return size if size < longest else 0


def words(facts: Facts, key: str, count: int) -> list[str] | None:
    """A list of one word for each layer, or None if the file has none."""
    value = facts.values.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count or not all(isinstance(word, str) for word in value):
        raise facts.error(f"{key} must be a list of {count} words, one for each layer")
    return value


def by_words(facts: Facts, types: Sequence[str]) -> list[Layer]:
    """One layer of attention for each word."""
    layers: list[Layer] = []
    for word in types:
        kind = _KINDS.get(word)
        if kind is None:
            raise facts.error(f"layer_types holds {word!r}; supported here: {', '.join(_KINDS)}")
        size = 0
        if kind is GroupKind.WINDOW:
            size = window_of(facts)
        elif kind is GroupKind.CHUNKED:
            size = facts.integer("attention_chunk_size", 1, MAX_TOKENS)
        layers.append(keys_values(facts, kind if size else GroupKind.FULL, size))
    return layers


def every(period: int, offset: int, count: int, one: str, others: str) -> list[str]:
    """`one` in layers `offset`, `offset + period` and so on, `others` elsewhere."""
    return [one if place % period == offset else others for place in range(count)]


def read_plain(facts: Facts) -> list[Layer]:
    """Every layer keeps every token, unless the file lists other types."""
    return by_words(facts, words(facts, "layer_types", num_layers(facts)) or ["attention"] * num_layers(facts))


def read_windowed(facts: Facts) -> list[Layer]:
    """Every layer slides, if there is a window at all."""
    return by_words(facts, words(facts, "layer_types", num_layers(facts)) or ["sliding_attention"] * num_layers(facts))


def read_late_windows(facts: Facts) -> list[Layer]:
    """Qwen: layers from `max_window_layers` on slide, if `use_sliding_window` says so."""
    count = num_layers(facts)
    if not facts.flag("use_sliding_window", False):
        return by_words(facts, ["attention"] * count)
    first = facts.integer("max_window_layers", 0, MAX_LAYERS, count)
    pattern = ["attention" if place < first else "sliding_attention" for place in range(count)]
    return by_words(facts, words(facts, "layer_types", count) or pattern)


def alternating(period: int) -> Callable[[Facts], list[Layer]]:
    """Families in which each layer number `period` is full and the others slide."""

    def read(facts: Facts) -> list[Layer]:
        count = num_layers(facts)
        every_so_many = facts.integer("sliding_window_pattern", 1, MAX_LAYERS, period)
        pattern = every(every_so_many, every_so_many - 1, count, "full_attention", "sliding_attention")
        return by_words(facts, words(facts, "layer_types", count) or pattern)

    return read


def read_no_rope_every(facts: Facts) -> list[Layer]:
    """SmolLM3 and its kin: `layer_types` decides; else all full, or windows in the layers with rope."""
    count = num_layers(facts)
    if not facts.flag("use_sliding_window", False):
        return by_words(facts, ["attention"] * count)
    return by_words(facts, words(facts, "layer_types", count) or ["sliding_attention"] * count)


def read_chunked(facts: Facts) -> list[Layer]:
    """Llama 4: layers with rope look at their own chunk, each fourth layer, without rope, at everything."""
    count = num_layers(facts)
    found = words(facts, "layer_types", count)
    if found is not None:
        return by_words(facts, found)
    if not facts.has("attention_chunk_size"):
        return by_words(facts, ["attention"] * count)
    rope = facts.values.get("no_rope_layers")
    if isinstance(rope, list) and len(rope) == count:
        return by_words(facts, ["chunked_attention" if has_rope else "full_attention" for has_rope in rope])
    period = facts.integer("no_rope_layer_interval", 1, MAX_LAYERS, 4)
    return by_words(facts, every(period, period - 1, count, "full_attention", "chunked_attention"))


def read_shared(facts: Facts, period: int = 5) -> list[Layer]:
    """Gemma 3n: the last layers read what earlier ones keep."""
    count = num_layers(facts)
    types = words(facts, "layer_types", count) or every(
        period, period - 1, count, "full_attention", "sliding_attention"
    )
    shared = facts.integer("num_kv_shared_layers", 0, count, 0)
    return by_words(facts, types[: count - shared])


def read_gemma4(facts: Facts) -> list[Layer]:
    """Gemma 4: full layers have wider heads, and perhaps fewer; the last layers read what earlier ones keep."""
    count = num_layers(facts)
    types = words(facts, "layer_types", count) or every(6, 5, count, "full_attention", "sliding_attention")
    types = [*types[:-1], "full_attention"]
    own = types[: count - facts.integer("num_kv_shared_layers", 0, count, 0)]
    wide = facts.integer("global_head_dim", 1, MAX_WIDTH, 512)
    heads = kv_heads(facts)
    if facts.flag("attention_k_eq_v", False):
        heads = facts.integer("num_global_key_value_heads", 1, MAX_WIDTH, heads)
    full = KeysValues(GroupKind.FULL, heads, wide, wide)
    return [full if kind == "full_attention" else by_words(facts, [kind])[0] for kind in own]


def read_latent(facts: Facts) -> list[Layer]:
    """DeepSeek's latent attention: one vector and one rotated key for all heads, whole on every rank."""
    latent = latent_layer(facts)
    layers: list[Layer] = [latent] * num_layers(facts)
    if facts.has("index_head_dim"):
        # Keys of the indexer that picks tokens: 8 bits and a scale for each 128 of them.
        dim = facts.integer("index_head_dim", 1, MAX_WIDTH)
        row = dim + -(-dim // 128) * 4
        keys = KeysValues(GroupKind.FULL, 1, dim, 0, label="indexer keys", splits=False, row_bytes=row)
        layers += [keys] * len(layers)
    return layers


def latent_layer(facts: Facts) -> KeysValues:
    rank = facts.integer("kv_lora_rank", 1, MAX_WIDTH)
    rope = facts.integer("qk_rope_head_dim", 1, MAX_WIDTH)
    return KeysValues(GroupKind.FULL, 1, rank + rope, 0, label="latent", splits=False)


def read_two_widths(facts: Facts) -> list[Layer]:
    """MiMo V2: `hybrid_layer_pattern` marks the layers that slide, which have heads of their own."""
    count = num_layers(facts)
    marks = facts.values.get("hybrid_layer_pattern")
    if not isinstance(marks, list) or len(marks) != count:
        raise facts.error(f"hybrid_layer_pattern must be a list of {count} marks, one for each layer")
    full = _two_widths(facts, GroupKind.FULL, "", 0)
    window = _two_widths(facts, GroupKind.WINDOW, "swa_", facts.integer("sliding_window", 1, MAX_TOKENS))
    return [window if mark else full for mark in marks]


def _two_widths(facts: Facts, kind: GroupKind, prefix: str, window: int) -> KeysValues:
    heads = facts.integer(f"{prefix}num_key_value_heads", 1, MAX_WIDTH)
    keys = facts.integer(f"{prefix}head_dim", 1, MAX_WIDTH)
    return KeysValues(kind, heads, keys, facts.integer(f"{prefix}v_head_dim", 1, MAX_WIDTH, keys), window)


def read_cross(facts: Facts) -> list[Layer]:
    """Llama 3.2 Vision: some layers look at images only and keep nothing of the text."""
    count = num_layers(facts)
    places = facts.values.get("cross_attention_layers")
    if not isinstance(places, list) or not all(isinstance(place, int) and 0 <= place < count for place in places):
        raise facts.error(f"cross_attention_layers must be a list of layer numbers below {count}")
    own, images = keys_values(facts), keys_values(facts, GroupKind.CROSS)
    return [images if place in places else own for place in range(count)]
