"""Card: one workload as published moments, and the requests drawn from them.

Owns the reading of the files beside this one and the four structures of common beginnings. What is drawn is a
surrogate: its means are the published ones, its shape is assumed, and the card says so.
Invariant: equal seeds give equal requests.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

from plait.core.errors import InvariantError, UsageError
from plait.sim.cards.lengths import LONGEST, CutLognormal, fitted
from plait.sim.cards.turns import Turns
from plait.sim.traces.request import TraceRequest

_FILES = resources.files("plait.sim.cards")


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    title: str
    source: str
    published: Mapping[str, object]
    assumed: tuple[str, ...]
    prompt: CutLognormal
    output: CutLognormal
    prefix: Mapping[str, object]

    def requests(self, seed: int) -> Iterator[TraceRequest]:
        """Requests without end and without times."""
        # A text as seed: integers next to each other give streams that are alike at first.
        rng = random.Random(f"{self.name} {seed}")
        match self.prefix["kind"]:
            case "turns":
                yield from self._conversations(rng)
            case "groups":
                while True:
                    yield self._request(rng, rng.randrange(_whole(self.prefix, "groups")))
            case _:
                while True:
                    yield self._request(rng, 0)

    def _request(self, rng: random.Random, group: int) -> TraceRequest:
        """Its beginning is that of its group, a block of so many tokens."""
        num_prompt, num_output = self.prompt.draw(rng), self.output.draw(rng)
        shared = _whole(self.prefix, "tokens") if "tokens" in self.prefix else 0
        return TraceRequest(None, num_prompt, num_output, (group,) if shared else (), shared)

    def _conversations(self, rng: random.Random) -> Iterator[TraceRequest]:
        fraction = self.prefix["continue_fraction"]
        assert isinstance(fraction, float)
        turns = Turns(self.prompt, fraction, rng)
        while True:
            num_prompt, blocks = turns.next()
            yield TraceRequest(None, num_prompt, self.output.draw(rng), blocks, turns.block_tokens)


def card_names() -> list[str]:
    return sorted(file.name.removesuffix(".json") for file in _FILES.iterdir() if file.name.endswith(".json"))


def find_card(name: str) -> Card:
    """The card of that name, large or small letters alike."""
    names = card_names()
    if name.lower() not in names:
        raise UsageError(f"no card is called {name!r}; choose one of {', '.join(names)}")
    return _card(json.loads(_FILES.joinpath(f"{name.lower()}.json").read_text(encoding="utf-8")))


def _card(values: Mapping[str, object]) -> Card:
    published, spread, prefix = (_table(values, key) for key in ("published", "spread", "prefix"))
    assumed = values["assumed"]
    if not isinstance(assumed, list):
        raise InvariantError(f"card {values['name']} does not say what is assumed")
    return Card(
        name=str(values["name"]),
        title=str(values["title"]),
        source=str(values["source"]),
        published=published,
        assumed=tuple(str(one) for one in assumed),
        prompt=_lengths(_table(published, "input_tokens"), spread.get("input")),
        output=_lengths(_table(published, "output_tokens"), spread.get("output")),
        prefix=prefix,
    )


def _lengths(moments: Mapping[str, object], sigma: object) -> CutLognormal:
    least = _whole(moments, "min") if "min" in moments else 1
    most = _whole(moments, "max") if "max" in moments else LONGEST
    return fitted(least, _whole(moments, "mean"), most, sigma if isinstance(sigma, float) else None)


def _table(values: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = values.get(key, {})
    if not isinstance(found, dict):
        raise InvariantError(f"{key} of a card is not a table")
    return found


def _whole(values: Mapping[str, object], key: str) -> int:
    found = values[key]
    if not isinstance(found, int):
        raise InvariantError(f"{key} of a card is {found!r}, not a whole number")
    return found
