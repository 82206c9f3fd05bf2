"""Sim cards: `plait sim cards`, the workloads that are known by published moments alone.

Owns the list. The cards are `plait.sim.cards`'.
"""

from __future__ import annotations

from textwrap import wrap

from plait.cli.streams import show, show_json
from plait.config.option import OptionSources
from plait.config.sim_options import SimCardsOptions
from plait.sim.cards.card import Card, card_names, find_card
from plait.sim.cards.lengths import LONGEST, CutLognormal

WIDTH = 100


def run_cards(sources: OptionSources) -> int:
    options = sources.read(SimCardsOptions)
    cards = [find_card(name) for name in card_names()]
    if options.json:
        show_json({"cards": [_object(card) for card in cards]})
        return 0
    show(
        "surrogates: drawn from published moments, because the traces themselves cannot be had or are not ours to give"
    )
    for card in cards:
        show(f"\n{card.name:<14}{card.title}")
        for text in (f"tokens in {_span(card.prompt)}, out {_span(card.output)}", card.source, *card.assumed):
            for line in wrap(text, WIDTH, initial_indent=" " * 14, subsequent_indent=" " * 16):
                show(line)
    return 0


def _span(lengths: CutLognormal) -> str:
    if lengths.sigma == 0:
        return f"{lengths.mean:,.0f}"
    if (lengths.least, lengths.most) == (1, LONGEST):
        return f"{lengths.mean:,.0f} on average"
    return f"{lengths.least:,} / {lengths.mean:,.0f} / {lengths.most:,} (least, mean, most)"


def _object(card: Card) -> dict[str, object]:
    return {
        "name": card.name,
        "label": "surrogate",
        "title": card.title,
        "source": card.source,
        "published": dict(card.published),
        "assumed": list(card.assumed),
        "prefix": dict(card.prefix),
    }
