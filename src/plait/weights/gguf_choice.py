"""The GGUF models among a list of file names: parts put together, one of them chosen.

Owns what a name says: which part of a split model it is, which quantisation, whether it is a model at all. Looks into
no file; whether the names come from a folder or from a hub's list makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from plait.core.errors import ModelError
from plait.weights.hf_layout import SHARD, is_plain_name

GGUF: Final = ".gguf"
_MOST_SHOWN: Final = 12
# Projectors of images, and statistics that quantisers used: beside models, but none.
_NO_MODEL: Final = re.compile(r"(^|[-._])(mmproj|imatrix)([-._]|$)", re.IGNORECASE)
_QUANTISATION: Final = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d[A-Z0-9]*(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_[A-Z]+)?|BF16|F16|F32))(?=[-.]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class GgufChoice:
    """One model: its files in order, the first of which stands for it."""

    files: tuple[str, ...]
    quantisation: str
    """As the name spells it, such as Q4_K_M; empty where it does not."""

    @property
    def first(self) -> str:
        return self.files[0]


def gguf_choices(names: Iterable[str]) -> list[GgufChoice]:
    """The models among `names`, which may have folders in front. A split model with a part missing is left out."""
    found = sorted(name for name in names if name.endswith(GGUF) and all(map(is_plain_name, name.split("/"))))
    there = set(found)
    choices: list[GgufChoice] = []
    for name in found:
        base = name.rpartition("/")[2]
        if _NO_MODEL.search(base.removesuffix(GGUF)):
            continue
        # Looked at one by one up to the first that is missing: a list may name parts of ever so many.
        if name == next(_parts(name), None) and all(part in there for part in _parts(name)):
            choices.append(GgufChoice(parts_of(name), quantisation_of(name)))
    return choices


def parts_of(name: str) -> tuple[str, ...]:
    """The files of a split model that `name` is a part of, or `name` alone."""
    return tuple(_parts(name))


def _parts(name: str) -> Iterator[str]:
    folder, slash, base = name.rpartition("/")
    match = SHARD.fullmatch(base)
    if match is None or match["ending"] != "gguf" or not int(match["count"]):
        yield name
        return
    count = int(match["count"])
    for part in range(1, count + 1):
        yield f"{folder}{slash}{match['stem']}-{part:05}-of-{count:05}{GGUF}"


def quantisation_of(name: str) -> str:
    base = name.rpartition("/")[2]
    match = SHARD.fullmatch(base)
    stem = base.removesuffix(GGUF) if match is None else match["stem"]
    spelled = _QUANTISATION.findall(stem)
    return str(spelled[-1]) if spelled else ""


def choose_gguf(
    names: Iterable[str], quantisation: str | None, place: str, form: Callable[[GgufChoice], str]
) -> GgufChoice:
    """The only model among `names`, or the only one in that quantisation; otherwise a `ModelError` that lists them.

    `form` is what the user may write for one of them.
    """
    choices = gguf_choices(names)
    fitting = choices if quantisation is None else [one for one in choices if _is_in(one, quantisation)]
    if len(fitting) == 1:
        return fitting[0]
    if not choices:
        raise ModelError(f"{place}: no {GGUF} model in it")
    if not fitting:
        raise ModelError(f"{place}: no file in {quantisation}; there are {_listed(choices)}")
    what = "models" if quantisation is None else f"models in {quantisation}"
    raise ModelError(f"{place}: {len(fitting)} {what}: {_listed(fitting)}; say which, such as {form(fitting[0])}")


def _is_in(choice: GgufChoice, quantisation: str) -> bool:
    wanted = quantisation.lower()
    folder = choice.first.rpartition("/")[0].rpartition("/")[2]
    return wanted in (choice.quantisation.lower(), folder.lower(), choice.first.lower())


def _listed(choices: Sequence[GgufChoice]) -> str:
    spelled = [one.quantisation for one in choices]
    are_telling = all(spelled) and len({word.lower() for word in spelled}) == len(spelled)
    names = spelled if are_telling else [one.first for one in choices]
    rest = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
