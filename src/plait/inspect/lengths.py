"""Lengths: which sequences a report is about, from a list or a file of a trace.

Owns the small language of --lengths: `2k`, `10x2k` (ten of them), `43+6193` (tokens of text and of images), a comma
between them; and the files that hold one entry or one request on each line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from plait.config.values import parse_count
from plait.core.errors import UsageError

MAX_TOKENS = 1 << 32
MAX_SEQUENCES = 1 << 32
MAX_FILE_BYTES = 1 << 30
MAX_KINDS = 4096
"""Different lengths of a file; more are rounded up to the next power-of-two step, 1 % apart."""
DEFAULT_LENGTHS = "500,4K,32K"

_ENTRY = re.compile(r"(?:([0-9.]+[kKmM]?)\s*x\s*)?([0-9.]+[kKmM]?)(?:\s*\+\s*([0-9.]+[kKmM]?))?")
_PROMPT = ("prompt_tokens", "input_length", "input_tokens", "num_prompt_tokens", "ContextTokens")
_OUTPUT = ("output_tokens", "output_length", "completion_tokens", "num_output_tokens", "GeneratedTokens")

Sizes = dict[tuple[int, int], int]
"""(tokens, image tokens) -> how many sequences, in the order given."""


def parse_entry(text: str) -> tuple[int, int, int]:
    """(how many, tokens, image tokens) of one entry."""
    found = _ENTRY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is no length; write tokens such as 500, 2k, 10x16k or 43+6193")
    count, tokens, images = (None if part is None else parse_count(part) for part in found.groups())
    count, images = 1 if count is None else count, images or 0
    if tokens is None or not 1 <= tokens + images <= MAX_TOKENS or not 1 <= count <= MAX_SEQUENCES:
        raise ValueError(f"{text.strip()!r} is out of range; 1 to {MAX_TOKENS:,} tokens are possible")
    return count, tokens, images


def read_lengths(text: str) -> Sizes:
    """Sequences from --lengths: a list, or else the path of a file."""
    sizes: Sizes = {}
    try:
        entries = [parse_entry(part) for part in text.split(",")]
    except ValueError as error:
        path = Path(text)
        if _is_file(path):
            return read_trace(path)
        raise UsageError(f"--lengths is {text!r}; {error}, or give an existing file") from None
    for count, tokens, images in entries:
        sizes[tokens, images] = sizes.get((tokens, images), 0) + count
    return sizes


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_trace(path: Path) -> Sizes:
    """One entry a line, or one JSON object a line with the tokens of prompt and output."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UsageError(f"--lengths {path} has {path.stat().st_size:,} bytes; the limit is {MAX_FILE_BYTES:,}")
    found: Counter[tuple[int, int]] = Counter()
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and not line.startswith("#"):
                    _add_line(found, line, f"--lengths {path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--lengths {path} cannot be read ({error}); give a text file") from None
    if not found:
        raise UsageError(f"--lengths {path} holds no length; write one a line, such as 2k or 10x16k")
    return dict(_thinned(found))


def _add_line(found: Counter[tuple[int, int]], line: str, where: str) -> None:
    try:
        if not line.lstrip().startswith("{"):
            count, tokens, images = parse_entry(line)
        else:
            count, tokens, images = 1, _tokens(json.loads(line)), 0
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    found[tokens, images] += count


def _tokens(request: object) -> int:
    """Prompt and output of one request."""
    if isinstance(request, Mapping):
        numbers = [next((request[key] for key in keys if key in request), None) for keys in (_PROMPT, _OUTPUT)]
        whole = [number for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
        if whole and all(number >= 0 for number in whole) and 1 <= sum(whole) <= MAX_TOKENS:
            return sum(whole)
    raise ValueError(f"a request needs {_PROMPT[0]} and {_OUTPUT[0]}, whole numbers, or names such as {_PROMPT[1]}")


def _thinned(found: Counter[tuple[int, int]]) -> Iterable[tuple[tuple[int, int], int]]:
    """At most some thousand different lengths: beyond that they are rounded up, by less than 1 %."""
    if len(found) <= MAX_KINDS:
        return sorted(found.items())
    rounded: Counter[tuple[int, int]] = Counter()
    for (tokens, images), count in found.items():
        step = 1 << max(0, tokens.bit_length() - 8)
        rounded[-(-tokens // step) * step, images] += count
    return sorted(rounded.items())
