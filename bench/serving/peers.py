"""Peers as they are described on the command line: a JSON object, or a file that holds one.

Owns the fields and their meaning. Knows nothing about any machine: commands, addresses and files are all given.
Invariant: an unknown or missing field is a `ValueError` that names it, before anything is started.
"""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .contenders import Contender, Facts, LlamaProgram, ServerContender
from .limits import ARITHMETIC, Weights
from .openai_server import OpenAiServer


@dataclass(frozen=True, slots=True)
class Peer:
    """A server has `url`; llama.cpp's own programs have `llama_bench`, `llama_batched_bench` or both."""

    label: str
    url: str = ""
    start: str = ""
    """The command line that starts the server; empty: it runs already."""
    llama_bench: str = ""
    llama_batched_bench: str = ""
    """Command lines with model and flags, without the shape of the test, which is added."""
    model: str = "m"
    """What requests call the model."""
    file: str = ""
    """The weights, for their size and for the row of results."""
    weights_bytes: int = 0
    """Where the file's size is not what a step reads."""
    precision: str = ""
    arithmetic: str = "f32"
    """In which numbers products are computed: the limit that fractions refer to."""
    flags: str = ""
    """For the row of results, where the command line hides them in a script."""
    text_prompts: bool = False
    extra: dict[str, object] = dataclasses.field(default_factory=dict)
    """Merged into every request's body."""


def parse_peer(given: str) -> Peer:
    text = given if given.lstrip().startswith("{") else Path(given).read_text(encoding="utf-8")
    values = json.loads(text)
    known = {field.name: field for field in dataclasses.fields(Peer)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"a peer has no field {name!r}; there are {', '.join(known)}")
        wanted = type(Peer("").__getattribute__(name))
        if type(value) is not wanted:
            raise ValueError(f"{name} of a peer is {value!r}; {wanted.__name__} is expected")
    if "label" not in values:
        raise ValueError('a peer needs a label, e.g. {"label": "name precision", "url": "http://127.0.0.1:8000"}')
    peer = Peer(**values)
    if not (peer.url or peer.llama_bench or peer.llama_batched_bench):
        raise ValueError(f"peer {peer.label!r} has neither url nor llama_bench nor llama_batched_bench; give one")
    if peer.arithmetic not in ARITHMETIC:
        raise ValueError(f"arithmetic of {peer.label!r} is {peer.arithmetic!r}; choose from {', '.join(ARITHMETIC)}")
    return peer


def contender_of(peer: Peer, log: Path, keep: ExitStack | None) -> Contender:
    num_bytes = peer.weights_bytes or (os.path.getsize(peer.file) if peer.file else 0)
    commands = peer.start or " | ".join(filter(None, (peer.llama_bench, peer.llama_batched_bench)))
    facts = Facts(
        label=peer.label,
        way="HTTP" if peer.url else "own program",
        file=os.path.basename(peer.file),
        precision=peer.precision,
        flags=peer.flags or commands,
        weights=Weights(num_bytes, peer.arithmetic),
    )
    if not peer.url:
        return LlamaProgram(facts, peer.llama_bench, peer.llama_batched_bench)
    server = OpenAiServer(peer.url, peer.model, extra=peer.extra, as_text=peer.text_prompts)
    return ServerContender(facts, server, peer.start or None, log, keep=keep)
