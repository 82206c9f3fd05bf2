"""Paging: lists in the manner of the OpenAI API.

Owns `limit`, `after`, `order` and the list object. Invariant: following `last_id` until `has_more` is false shows
every object once, as long as none is added or deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from plait.api.bodies import JsonObject, JsonValue, shown
from plait.core.errors import RequestError

DEFAULT_LIMIT = 20


def page_of(request: Request, newest_first: Sequence[JsonObject], most: int) -> JsonObject:
    """The asked part of a list whose objects have an `id`."""
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(f"order is {shown(order)}; it must be asc or desc", param="order")
    limit = _limit(query.get("limit"), most)
    items = list(newest_first) if order == "desc" else list(newest_first)[::-1]
    after = query.get("after")
    if after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise RequestError(f"after is {shown(after)}, which is not in the list", param="after", status=404)
        items = items[place + 1 :]
    shown_items: list[JsonValue] = list(items[:limit])
    return {
        "object": "list",
        "data": shown_items,
        "first_id": items[0]["id"] if shown_items else None,
        "last_id": items[len(shown_items) - 1]["id"] if shown_items else None,
        "has_more": len(items) > limit,
    }


def _limit(text: str | None, most: int) -> int:
    if text is None:
        return min(DEFAULT_LIMIT, most)
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= most):
        raise RequestError(f"limit is {shown(text)}; it must be a number from 1 to {most}", param="limit")
    return int(text)
