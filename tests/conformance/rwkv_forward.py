"""RWKV-7 in double precision, token after token over whole texts, written from the model's own equations.

Owns nothing of ours: arrays by our names of weights come in, logits behind every token go out. The state's transition
is multiplied out as a matrix here, which is what the model is defined by and no executor does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[np.float32]]


@dataclass(slots=True)
class Forward:
    """`head_dim` columns a head; `eps` of all norms but that of heads, which is `head_dim` times as large."""

    arrays: Arrays
    head_dim: int
    eps: float = 1e-5
    _before: dict[str, Doubles] = field(default_factory=dict)
    _states: dict[int, Doubles] = field(default_factory=dict)

    def logits(self, tokens: Sequence[int]) -> Doubles:
        return np.asarray([self._token(token) for token in tokens])

    def _token(self, token: int) -> Doubles:
        x = self._norm(self._w("embed")[token], "embed_norm")
        first: Doubles | None = None
        layer = 0
        while f"layers.{layer}.mix" in self.arrays:
            mixed, value = self._time(layer, self._norm(x, f"layers.{layer}.attn_norm"), first)
            first = value if first is None else first
            x = x + mixed
            (k,) = self._mixed(f"layers.{layer}.ffn_mix", self._norm(x, f"layers.{layer}.ffn_norm"))
            up = np.maximum(self._w(f"layers.{layer}.up") @ k, 0.0)
            x = x + self._w(f"layers.{layer}.down") @ (up * up)
            layer += 1
        return np.asarray(self._w("head") @ self._norm(x, "final_norm"))

    def _time(self, layer: int, x: Doubles, first: Doubles | None) -> tuple[Doubles, Doubles]:
        def of(name: str) -> Doubles:
            return self._w(f"layers.{layer}.{name}")

        xr, xw, xk, xv, xa, xg = self._mixed(f"layers.{layer}.mix", x)
        r, k, v = of("r") @ xr, of("k") @ xk, of("v") @ xv
        decay = of("decay_up") @ np.tanh(of("decay_down") @ xw) + of("decay_up_bias")
        decay = np.exp(-np.exp(-np.logaddexp(0.0, -decay) - 0.5))  # -softplus(-x) - 1/2, as published
        rate = _sigmoid(of("rate_up") @ (of("rate_down") @ xa) + of("rate_up_bias"))
        gate = of("gate_up") @ _sigmoid(of("gate_down") @ xg)
        value = v
        if first is not None:
            share = _sigmoid(of("value_up") @ (of("value_down") @ xv) + of("value_up_bias"))
            v = (1 - share) * v + share * first
        removal = k * of("key_scale")
        k = k * ((1 - of("key_rate")) + of("key_rate") * rate)
        state = self._states.setdefault(layer, np.zeros((len(x) // self.head_dim, self.head_dim, self.head_dim)))
        out = np.empty_like(x)
        for head in range(len(state)):
            at = slice(head * self.head_dim, (head + 1) * self.head_dim)
            unit = removal[at] / max(float(np.linalg.norm(removal[at])), 1e-12)
            transition = np.diag(decay[at]) - np.outer(unit, rate[at] * unit)
            state[head] = state[head] @ transition + np.outer(v[at], k[at])
            read = state[head] @ r[at]
            read = (read - read.mean()) / np.sqrt(read.var() + self.eps * self.head_dim)
            read = read * of("read_norm")[at] + of("read_norm_bias")[at]
            out[at] = read + np.sum(r[at] * k[at] * of("bonus")[at]) * v[at]
        return np.asarray(of("o") @ (out * gate)), np.asarray(value)

    def _mixed(self, name: str, x: Doubles) -> Doubles:
        before = self._before.get(name, np.zeros_like(x))
        self._before[name] = x
        share = self._w(name)
        return np.asarray((1 - share) * x + share * before)

    def _norm(self, x: Doubles, name: str) -> Doubles:
        y = (x - x.mean()) / np.sqrt(x.var() + self.eps)
        return np.asarray(y * self._w(name) + self._w(f"{name}_bias"))

    def _w(self, name: str) -> Doubles:
        return self.arrays[name].astype(np.float64)


def _sigmoid(x: Doubles) -> Doubles:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))
