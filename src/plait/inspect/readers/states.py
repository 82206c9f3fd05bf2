"""States: readers of layers that keep one state whatever the length: Mamba, delta rules, convolutions, RWKV.

Owns the shapes of those states. A convolution keeps one column less than its width: the newest comes with the token.
A state is in the model's own numbers unless the file names a type for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.inspect.layers import KeysValues, Layer, NumberType, Part, State
from plait.inspect.readers.attention import (
    MAX_LAYERS,
    MAX_TOKENS,
    MAX_WIDTH,
    every,
    keys_values,
    latent_layer,
    num_heads,
    num_layers,
    words,
)
from plait.model.facts import Facts
from plait.model.parts import GroupKind

_ATTENTION = ("full_attention", "attention")
_STATES = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")
_NOTHING = ("mlp", "moe")
_BOTH = ("hybrid",)
_LETTERS = {"*": "attention", "M": "mamba", "-": "mlp", "E": "moe"}
_STATE_TYPES = {"float32": NumberType.F32, "bfloat16": NumberType.BF16, "float16": NumberType.F16}


def state_numbers(facts: Facts) -> NumberType | None:
    """The type that the file names for scan states; None: the model's own."""
    for key in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        if facts.has(key):
            return _STATE_TYPES[facts.word(key, _STATE_TYPES, "type of a state")]
    return None


def by_types(facts: Facts, types: Sequence[str], attention: KeysValues, state: State) -> list[Layer]:
    """Layers of two kinds, or of both at once, or that keep nothing."""
    layers: list[Layer] = []
    for word in types:
        if word in _BOTH:
            layers += [state, attention]
        elif word in _ATTENTION:
            layers.append(attention)
        elif word in _STATES:
            layers.append(state)
        elif word not in _NOTHING:
            known = ", ".join((*_ATTENTION, *_STATES, *_NOTHING, *_BOTH))
            raise facts.error(f"a layer is of type {word!r}; supported here: {known}")
    return layers


def types_of(facts: Facts) -> list[str] | None:
    count = num_layers(facts)
    return words(facts, "layer_types", count) or words(facts, "layers_block_type", count)


def mamba1(inner: int, conv: int, state: int, numbers: NumberType | None) -> State:
    parts = (Part("conv", inner * (conv - 1)), Part("ssm", inner * state, numbers))
    return State("mamba", parts, inner)


def mamba2(heads: int, dim: int, groups: int, conv: int, state: int, numbers: NumberType | None) -> State:
    parts = (Part("conv", (heads * dim + 2 * groups * state) * (conv - 1)), Part("ssm", heads * dim * state, numbers))
    return State("mamba2", parts, groups)


def read_jamba(facts: Facts) -> list[Layer]:
    count = num_layers(facts)
    period = facts.integer("attn_layer_period", 1, MAX_LAYERS)
    offset = facts.integer("attn_layer_offset", 0, MAX_LAYERS)
    inner = facts.integer("mamba_expand", 1, MAX_WIDTH) * facts.integer("hidden_size", 1, MAX_WIDTH)
    state = mamba1(
        inner,
        facts.integer("mamba_d_conv", 1, MAX_WIDTH),
        facts.integer("mamba_d_state", 1, MAX_WIDTH),
        state_numbers(facts),
    )
    types = types_of(facts) or every(period, offset, count, "attention", "mamba")
    return by_types(facts, types, keys_values(facts), state)


def read_mamba1(facts: Facts) -> list[Layer]:
    hidden = facts.integer("hidden_size", 1, MAX_WIDTH)
    inner = facts.integer("intermediate_size", 1, MAX_WIDTH, facts.integer("expand", 1, MAX_WIDTH, 2) * hidden)
    conv, state = facts.integer("conv_kernel", 1, MAX_WIDTH), facts.integer("state_size", 1, MAX_WIDTH)
    return [mamba1(inner, conv, state, state_numbers(facts))] * num_layers(facts)


def read_mamba2(facts: Facts) -> list[Layer]:
    return [
        mamba2(
            facts.integer("num_heads", 1, MAX_WIDTH),
            facts.integer("head_dim", 1, MAX_WIDTH),
            facts.integer("n_groups", 1, MAX_WIDTH),
            facts.integer("conv_kernel", 1, MAX_WIDTH),
            facts.integer("state_size", 1, MAX_WIDTH),
            state_numbers(facts),
        )
    ] * num_layers(facts)


def _mamba2_of(facts: Facts, inner: int) -> State:
    """Bamba's keys, which Granite and Falcon share."""
    heads = facts.integer("mamba_n_heads", 1, MAX_WIDTH)
    automatic = facts.values.get("mamba_d_head") in (None, "auto")
    return mamba2(
        heads,
        inner // heads if automatic else facts.integer("mamba_d_head", 1, MAX_WIDTH),
        facts.integer("mamba_n_groups", 1, MAX_WIDTH),
        facts.integer("mamba_d_conv", 1, MAX_WIDTH),
        facts.integer("mamba_d_state", 1, MAX_WIDTH),
        state_numbers(facts),
    )


def _expanded(facts: Facts) -> int:
    return facts.integer("mamba_expand", 1, MAX_WIDTH) * facts.integer("hidden_size", 1, MAX_WIDTH)


def read_bamba(facts: Facts) -> list[Layer]:
    """Bamba lists the layers of attention; Granite 4 the type of each."""
    count = num_layers(facts)
    types = types_of(facts)
    if types is None:
        places = facts.values.get("attn_layer_indices") or []
        if not isinstance(places, list):
            raise facts.error("attn_layer_indices must be a list of layer numbers")
        types = ["attention" if place in places else "mamba" for place in range(count)]
    return by_types(facts, types, keys_values(facts), _mamba2_of(facts, _expanded(facts)))


def read_falcon_h1(facts: Facts) -> list[Layer]:
    """Every layer has attention and a state, side by side."""
    inner = facts.integer("mamba_d_ssm", 1, MAX_WIDTH, _expanded(facts))
    return [keys_values(facts), _mamba2_of(facts, inner)] * num_layers(facts)


def read_nemotron_h(facts: Facts) -> list[Layer]:
    """Types are spelt in letters: M mamba, * attention, - and E keep nothing."""
    types = _spelt(facts) or types_of(facts)
    if types is None:
        raise facts.error("hybrid_override_pattern and layers_block_type are missing; one of them must be there")
    state = mamba2(
        facts.integer("mamba_num_heads", 1, MAX_WIDTH),
        facts.integer("mamba_head_dim", 1, MAX_WIDTH),
        facts.integer("n_groups", 1, MAX_WIDTH),
        facts.integer("conv_kernel", 1, MAX_WIDTH),
        facts.integer("ssm_state_size", 1, MAX_WIDTH),
        state_numbers(facts),
    )
    return by_types(facts, types, keys_values(facts), state)


def _spelt(facts: Facts) -> list[str] | None:
    pattern = facts.values.get("hybrid_override_pattern")
    if pattern is None:
        return None
    if not isinstance(pattern, str) or any(letter not in _LETTERS for letter in pattern):
        raise facts.error(f"hybrid_override_pattern must be spelt in {', '.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in pattern]


def read_zamba2(facts: Facts) -> list[Layer]:
    """Every layer has a state; hybrid ones attend as well, over twice the model's width, each with its own cache."""
    types = words(facts, "layers_block_type", num_layers(facts))
    if types is None:
        raise facts.error("layers_block_type is missing; it must list mamba or hybrid for each layer")
    heads, hidden = num_heads(facts), facts.integer("hidden_size", 1, MAX_WIDTH)
    dim = facts.integer("attention_head_dim", 1, MAX_WIDTH, 2 * hidden // heads)
    attention = KeysValues(GroupKind.FULL, facts.integer("num_key_value_heads", 1, MAX_WIDTH, heads), dim, dim)
    mamba_heads = facts.integer("n_mamba_heads", 1, MAX_WIDTH)
    inner = facts.integer("mamba_expand", 1, MAX_WIDTH) * hidden
    state = mamba2(
        mamba_heads,
        facts.integer("mamba_headdim", 1, MAX_WIDTH, inner // mamba_heads),
        facts.integer("mamba_ngroups", 1, MAX_WIDTH),
        facts.integer("mamba_d_conv", 1, MAX_WIDTH),
        facts.integer("mamba_d_state", 1, MAX_WIDTH),
        state_numbers(facts),
    )
    return by_types(facts, types, attention, state)


def read_gated_delta(facts: Facts) -> list[Layer]:
    """Qwen3-Next and Qwen3.5: a matrix for each value head, and the tail of one convolution over q, k and v."""
    count = num_layers(facts)
    key_heads = facts.integer("linear_num_key_heads", 1, MAX_WIDTH)
    key_dim = facts.integer("linear_key_head_dim", 1, MAX_WIDTH)
    value_heads = facts.integer("linear_num_value_heads", 1, MAX_WIDTH)
    value_dim = facts.integer("linear_value_head_dim", 1, MAX_WIDTH)
    conv = facts.integer("linear_conv_kernel_dim", 1, MAX_WIDTH)
    columns = 2 * key_heads * key_dim + value_heads * value_dim
    parts = (
        Part("conv", columns * (conv - 1)),
        Part("recurrent", value_heads * key_dim * value_dim, state_numbers(facts)),
    )
    period = facts.integer("full_attention_interval", 1, MAX_LAYERS, 4)
    types = types_of(facts) or every(period, period - 1, count, "full_attention", "linear_attention")
    return by_types(facts, types, keys_values(facts), State("gated delta", parts, key_heads))


def read_kimi_linear(facts: Facts) -> list[Layer]:
    """Kimi: a matrix for each head in f32 and three short convolutions; other layers keep a latent vector."""
    linear = facts.table("linear_attn_config")
    if linear is None:
        raise facts.error("linear_attn_config is missing; it says which layers keep a state")
    full = linear.values.get("full_attn_layers")
    if not isinstance(full, list):
        raise linear.error("full_attn_layers must be a list of layer numbers, counted from 1")
    heads, dim = linear.integer("num_heads", 1, MAX_WIDTH), linear.integer("head_dim", 1, MAX_WIDTH)
    conv = linear.integer("short_conv_kernel_size", 1, MAX_WIDTH)
    parts = (Part("conv", 3 * heads * dim * (conv - 1)), Part("recurrent", heads * dim * dim, NumberType.F32))
    types = ["attention" if place + 1 in full else "linear_attention" for place in range(num_layers(facts))]
    return by_types(facts, types, latent_layer(facts), State("delta", parts, heads))


def read_lightning(facts: Facts) -> list[Layer]:
    """MiniMax: one matrix in f32 for each head."""
    count, heads = num_layers(facts), num_heads(facts)
    attention = keys_values(facts)
    marks = facts.values.get("attn_type_list")
    types = types_of(facts)
    if types is None and isinstance(marks, list) and len(marks) == count:
        types = ["attention" if mark else "linear_attention" for mark in marks]
    if types is None:
        raise facts.error("layer_types and attn_type_list are missing; one of them must be there")
    matrix = Part("recurrent", heads * attention.head_dim_k * attention.head_dim_k, NumberType.F32)
    return by_types(facts, types, attention, State("lightning", (matrix,), heads))


def read_short_conv(facts: Facts) -> list[Layer]:
    """LFM2: the last columns of a short convolution."""
    count, hidden = num_layers(facts), facts.integer("hidden_size", 1, MAX_WIDTH)
    places = facts.values.get("full_attn_idxs")
    types = types_of(facts)
    if types is None and isinstance(places, list):
        types = ["attention" if place in places else "conv" for place in range(count)]
    if types is None:
        raise facts.error("layer_types and full_attn_idxs are missing; one of them must be there")
    part = Part("conv", hidden * (facts.integer("conv_L_cache", 2, MAX_WIDTH) - 1))
    return by_types(facts, types, keys_values(facts), State("short conv", (part,), hidden))


def read_rwkv4(facts: Facts) -> list[Layer]:
    """The last row of two mixings, and three sums in f32."""
    hidden = facts.integer("hidden_size", 1, MAX_WIDTH)
    inner = facts.integer("attention_hidden_size", 1, MAX_WIDTH, hidden)
    parts = (Part("shift", 2 * hidden), Part("sums", 3 * inner, NumberType.F32))
    return [State("rwkv", parts, 1)] * num_layers(facts)


def read_rwkv7(facts: Facts) -> list[Layer]:
    """The last row of two mixings, and a matrix for each head, which other programs keep in f32 too."""
    hidden = facts.integer("hidden_size", 1, MAX_WIDTH)
    dim = facts.integer("head_dim", 1, MAX_WIDTH, 64)
    parts = (Part("shift", 2 * hidden), Part("wkv", hidden * dim, NumberType.F32))
    return [State("rwkv", parts, max(1, hidden // dim))] * num_layers(facts)


def read_recurrent_gemma(facts: Facts) -> list[Layer]:
    """Two recurrent layers and one with a window, in turn."""
    count = num_layers(facts)
    turn = facts.values.get("block_types")
    if not isinstance(turn, list) or not turn:
        raise facts.error("block_types must list the types of the first layers, which repeat")
    width = facts.integer("lru_width", 1, MAX_WIDTH, facts.integer("hidden_size", 1, MAX_WIDTH))
    conv = facts.integer("conv1d_width", 1, MAX_WIDTH)
    state = State("recurrent", (Part("conv", width * (conv - 1)), Part("lru", width, NumberType.F32)), width)
    window = facts.integer("attention_window_size", 1, MAX_TOKENS)
    types = [str(turn[place % len(turn)]) for place in range(count)]
    return by_types(facts, types, keys_values(facts, GroupKind.WINDOW, window), state)
