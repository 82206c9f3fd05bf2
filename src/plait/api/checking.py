"""Checking: a JSON object against a pydantic model, with errors that a user can act on.

Owns the sentences for every way in which a field can be wrong. Knows no endpoint; ranges of sampling values are core's.
Invariant: `checked` returns a valid model or raises `RequestError` with the dotted path of the first faulty field;
pydantic's own wording never reaches a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from plait.api.bodies import JsonObject, shown
from plait.core.errors import InvariantError, RequestError

# Unknown fields are ignored because SDKs add new ones every month; "8" is not 8 and 1.5 is not 1, but 8.0 is 8.
LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES = ConfigDict(extra="ignore", strict=True, frozen=True)

_WANTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BOUNDS = {"greater_than_equal": ("ge", "at least"), "less_than_equal": ("le", "at most")}


EXACT_BELOW = 2.0**53


def whole(value: object) -> object:
    """JSON has one kind of number: 8.0 is 8, and some clients write all of theirs like that. What is too large to be
    exact stays what it is.
    """
    if not isinstance(value, float) or not value.is_integer() or abs(value) >= EXACT_BELOW:
        return value
    return int(value)


Integer = Annotated[int, BeforeValidator(whole), Field(ge=-(2**63), le=2**64 - 1)]
"""Integers as JSON libraries carry them. Each field has limits of its own; these keep numbers of thousands of
digits, which Python refuses to print, out of their messages.
"""

Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], body: JsonObject) -> Model:
    """`body` as a `model`; `RequestError` for the first fault."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        context: Mapping[str, object] = fault.get("ctx", {})
        raise _request_error(fault["type"], fault["loc"], fault["input"], context) from error


def _request_error(
    kind: str, path: tuple[int | str, ...], value: object, context: Mapping[str, object]
) -> RequestError:
    param = ".".join(str(part) for part in path)
    if kind == "missing":
        return RequestError(f"{param} is missing; it must be given", param=param)
    return RequestError(f"{param} is {shown(value)}; it must be {_wanted(kind, context)}", param=param)


def _wanted(kind: str, context: Mapping[str, object]) -> str:
    if kind in _WANTED:
        return _WANTED[kind]
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{words} {context[key]}"
    if kind == "literal_error":
        return str(context["expected"]).replace("'", '"')
    raise InvariantError(f"no sentence for the field fault {kind!r}")
