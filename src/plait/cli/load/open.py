"""Open: a target by what the user said: a server's address, or a model on an engine in this process.

Owns the start and the end of the engine, and what the target is called in reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from plait.build import check_scheduler, load_model, start_engine
from plait.cli.load.asks import Target
from plait.cli.load.local import Local
from plait.cli.load.server import PATIENCE_S, Server, parse_url
from plait.cli.load.words import whole_words
from plait.cli.streams import say
from plait.cli.terminal import download_progress
from plait.config.engine_options import EngineOptions
from plait.metrics.totals import Totals


@dataclass(frozen=True, slots=True)
class Opened:
    """`words`: for prompts; one token each where the model is known here."""

    target: Target
    label: str
    way: str
    """HTTP, or in process."""
    model: str
    words: list[str]
    max_tokens: int | None
    """Prompt and answer together; None: nobody told."""

    def json_object(self) -> dict[str, object]:
        return {"label": self.label, "way": self.way, "model": self.model, "max_tokens": self.max_tokens}


@dataclass(frozen=True, slots=True)
class Reach:
    """How a server is spoken to."""

    model_name: str | None = None
    endpoint: str = "completions"
    api_key: str | None = None
    patience_s: float = PATIENCE_S


async def open_server(url: str, reach: Reach) -> Opened:
    """`PlaitError` if it does not answer; a name that was given is believed."""
    address = parse_url(url)
    server = Server(
        address,
        reach.model_name or "",
        endpoint=reach.endpoint,
        api_key=reach.api_key,
        patience_s=reach.patience_s,
    )
    if reach.model_name is None:
        server.model = await server.find_model()
    return Opened(server, address.shown, "HTTP", server.model, whole_words(None), None)


@contextmanager
def opened_engine(options: EngineOptions, *, quiet: bool) -> Iterator[Opened]:
    """Enter and leave it outside of an event loop: loading takes seconds."""
    check_scheduler(options)
    with download_progress(options.model, quiet=quiet) as progress:
        model = load_model(options, progress, datetime.now)
    engine = start_engine(options, model, Totals(), say)
    try:
        words = whole_words(partial(model.tokenizer.encode, add_special=False))
        limit = engine.sizes.max_model_tokens
        yield Opened(Local(engine), f"plait {model.name}", "in process", model.name, words, limit)
    finally:
        engine.close()
