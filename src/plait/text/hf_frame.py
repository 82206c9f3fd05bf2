"""HF frame: what a model in the format of `transformers` wants around every text.

Owns reading that from the post-processor of tokenizer.json, or from flags where there is none. Knows nothing about
texts. Invariant: the same tokens as `transformers` puts around one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.errors import ModelError
from plait.text.hf_files import Json

_SILENT = ("ByteLevel",)
_PAIRED = ("BertProcessing", "RobertaProcessing")
SUPPORTED = (*_PAIRED, *_SILENT, "Sequence", "TemplateProcessing")

Frame = tuple[tuple[int, ...], tuple[int, ...]]


def frame_by_flags(default: Frame, tokenizer_config: Json, named_ids: Mapping[str, int]) -> Frame:
    """The same where no tokenizer.json says it: by `add_bos_token` and `add_eos_token` if one of them is given."""
    flags = {name: tokenizer_config.get(f"add_{name}_token") for name in ("bos", "eos")}
    if not any(isinstance(value, bool) for value in flags.values()):
        return default
    sides: list[tuple[int, ...]] = []
    for name, wanted in flags.items():
        token = named_ids.get(f"{name}_token")
        sides.append((token,) if wanted is True and token is not None else ())
    return sides[0], sides[1]


def read_frame(processor: object, source: str) -> Frame:
    """The tokens before and after a text. Flags of tokenizer_config.json do not count, as in `transformers`."""
    if processor is None:
        return (), ()
    kind = processor.get("type") if isinstance(processor, dict) else None
    if not isinstance(processor, dict) or kind not in SUPPORTED:
        raise ModelError(
            f"{source}: post_processor is of type {repr(kind)[:40]}; supported: {', '.join(SUPPORTED)}; "
            "use a model with one of these"
        )
    if kind in _SILENT:
        return (), ()
    if kind in _PAIRED:
        return (_paired_id(processor, "cls", source),), (_paired_id(processor, "sep", source),)
    if kind == "TemplateProcessing":
        return _template(processor, source)
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    inner = processor.get("processors")
    for part in inner if isinstance(inner, list) else []:
        if isinstance(part, dict) and part.get("type") == "Sequence":
            raise ModelError(f"{source}: post_processor is a sequence of sequences; get the file again")
        head, tail = read_frame(part, source)
        before, after = head + before, after + tail
    return before, after


def _template(processor: Json, source: str) -> Frame:
    single = processor.get("single")
    known = processor.get("special_tokens")
    sides: list[list[int]] = [[]]
    for part in single if isinstance(single, list) else []:
        special = part.get("SpecialToken") if isinstance(part, dict) else None
        if special is None:
            sides.append([])
        else:
            sides[-1] += _special_ids(special, known, source)
    if len(sides) != 2:
        raise ModelError(f"{source}: post_processor's template for one text does not name it once; get the file again")
    return tuple(sides[0]), tuple(sides[1])


def _special_ids(special: object, known: object, source: str) -> Sequence[int]:
    name = special.get("id") if isinstance(special, dict) else None
    entry = known.get(name) if isinstance(known, dict) and isinstance(name, str) else None
    ids = entry.get("ids") if isinstance(entry, dict) else None
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise ModelError(f"{source}: post_processor gives no ids for {repr(name)[:40]}; get the file again")
    return ids


def _paired_id(processor: Json, name: str, source: str) -> int:
    pair = processor.get(name)
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], int):
        raise ModelError(f"{source}: post_processor has {name} {repr(pair)[:40]}, not a token with its id")
    return pair[1]
