"""Layouts by name: what may stand in --kv-layout, and how each is made for a model's groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from plait.config.kv_layouts import MANUAL, manual_shares
from plait.kv.layouts.buddy import buddy
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.jenga import jenga
from plait.kv.layouts.layout import Layout, Refused
from plait.kv.layouts.max_page import max_page
from plait.kv.layouts.partition import manual, static
from plait.kv.layouts.plait import plait
from plait.kv.layouts.uniform import uniform
from plait.kv.layouts.vllm import vllm

Maker: TypeAlias = Callable[[Sequence[MemoryGroup], int], "Layout | Refused"]

MAKERS: Final[Mapping[str, Maker]] = MappingProxyType(
    {"uniform": uniform, "vllm": vllm, "jenga": jenga, "plait": plait}
    | {"max-page": max_page, "static": static, "buddy": buddy}
)
SERVED_AS: Final = MappingProxyType({"paged": "plait"})
"""What `plait serve --kv-layout` calls the layout of this engine."""
DEFAULT_LAYOUTS: Final = ("uniform", "vllm", "jenga", "plait")


def make_layout(name: str, groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout | Refused:
    """`name` is one of `MAKERS`, or manual:GROUP=SHARE:GROUP=SHARE; `parse_layouts` has checked it."""
    kind, _, shares = name.partition(":")
    if kind == MANUAL:
        return manual(groups, tokens_per_block, manual_shares(shares))
    return MAKERS[kind](groups, tokens_per_block)


def parse_layouts(text: str) -> tuple[str, ...]:
    """ "vllm,jenga" and the like, "paged" too, which is "plait"; `ValueError` for what no layout is called."""
    given = (name.strip() for name in text.split(",") if name.strip())
    names = tuple(dict.fromkeys(SERVED_AS.get(name, name) for name in given))
    if not names:
        raise ValueError(f"names of layouts are expected: {_known()}")
    for name in names:
        kind, colon, shares = name.partition(":")
        if kind == MANUAL:
            manual_shares(shares)
        elif kind not in MAKERS or colon:
            raise ValueError(f"{name!r} is no layout; known are {_known()}")
    return names


def _known() -> str:
    return ", ".join((*MAKERS, "manual:GROUP=SHARE:..."))
