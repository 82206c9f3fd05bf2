"""Values: how text from a command line, the environment or YAML becomes a number, a size or a path.

Owns the parsers and their messages. A parser gets a string and raises `ValueError` with what would have been right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)"
_BYTES = re.compile(_NUMBER + r"\s*([kKmMgGtT]i?)?[bB]?")
_COUNT = re.compile(_NUMBER + r"\s*([kKmM])?")
_PERCENT = re.compile(_NUMBER + r"\s*%?")
_REAL = re.compile(r"[0-9]{0,18}(?:\.[0-9]{1,18})?")
_SECONDS = re.compile(_NUMBER + r"\s*(ms|s|m)?")
_SEED = re.compile(r"[+-]?[0-9]{1,19}")
_SHARD = re.compile(r"([0-9]{1,9})/([1-9][0-9]{0,8})")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
MOST_BARE_S = 30.0
MOST_TARGET_S = 86_400.0
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def parse_bytes(text: str) -> int:
    """ "1GiB", "512 MiB" (powers of 1,024), "4GB", "4G" (powers of 1,000) or plain bytes."""
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise ValueError("a size such as 1GiB, 512MiB or 2000000000 is expected")
    number, unit = found.groups()
    if unit is None:
        return int(Fraction(number))
    base = 1024 if unit.endswith("i") else 1000
    return int(Fraction(number) * base ** _POWERS[unit[0].lower()])


def bytes_from(least: int) -> Callable[[str], int]:
    """As `parse_bytes`, for a limit that makes no sense below `least` bytes."""

    def parse(text: str) -> int:
        size = parse_bytes(text)
        if size < least:
            raise ValueError(f"{size:,} bytes are too few; give at least {least:,}")
        return size

    return parse


def parse_count(text: str) -> int:
    """ "4096", "32k" (1,000) or "32K" (1,024); m and M likewise."""
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError("a whole number such as 4096, 32k (32,000) or 32K (32,768) is expected")
    number, unit = found.groups()
    factor = 1 if unit is None else (1000 if unit.islower() else 1024) ** _POWERS[unit.lower()]
    value = Fraction(number) * factor
    if value.denominator != 1:
        raise ValueError("a whole number is expected")
    return int(value)


def count_between(least: int, most: int) -> Callable[[str], int]:
    """A parser of counts from `least` to `most`."""

    def parse(text: str) -> int:
        value = parse_count(text)
        if not least <= value <= most:
            raise ValueError(f"a number from {least} to {most} is expected")
        return value

    return parse


def count_from(least: int) -> Callable[[str], int]:
    """A parser of counts that are at least so large; the most is known only later."""

    def parse(text: str) -> int:
        value = parse_count(text)
        if value < least:
            raise ValueError(f"a number of at least {least} is expected")
        return value

    return parse


def parse_positive(text: str) -> int:
    return count_from(1)(text)


def parse_percent(text: str) -> float:
    """ "0.5" or "0.5%": a number of percent from 0 on."""
    found = _PERCENT.fullmatch(text.strip())
    if found is None:
        raise ValueError("a number of percent such as 0.5 is expected")
    return float(found.group(1))


def number_between(least: float, most: float, *, above: bool = False) -> Callable[[str], float]:
    """A parser of numbers such as 0.7 from `least` to `most`; `above`: the least itself is too small."""

    said = f"a number {'above' if above else 'from'} {least:g} {'up ' if above else ''}to {most:g} is expected"

    def parse(text: str) -> float:
        if not text.strip() or _REAL.fullmatch(text.strip()) is None:
            raise ValueError(said)
        value = float(text)
        if not least <= value <= most or (above and value == least):
            raise ValueError(said)
        return value

    return parse


def parse_seconds(text: str) -> float:
    """ "0.5", "0.5s", "500ms" or "2m": seconds, more than none."""
    found = _SECONDS.fullmatch(text.strip())
    value = 0.0 if found is None else float(found.group(1)) * {"ms": 1e-3, "m": 60.0}.get(found.group(2) or "s", 1.0)
    if value <= 0:
        raise ValueError("a time above 0 such as 0.5s, 500ms or 2m is expected")
    return value


def parse_target(text: str) -> float:
    """A time as `parse_seconds`, for how soon something should be there. Many write such times in milliseconds, so that
    a number without a unit is believed up to `MOST_BARE_S` only.
    """
    value, number = parse_seconds(text), text.strip()
    if value > MOST_BARE_S and number[-1].isdigit():
        raise ValueError(f"a number alone is seconds; write {number}s if that is meant, or {number}ms")
    if value > MOST_TARGET_S:
        raise ValueError(f"a time of at most {MOST_TARGET_S / 3600:g} hours is expected")
    return value


def parse_patience(text: str) -> float:
    """ "30s", as `parse_seconds`, or "0": none at all."""
    return 0.0 if text.strip() in ("0", "0s") else parse_seconds(text)


def parse_seed(text: str) -> int:
    """A whole number of 64 bits, negative ones too."""
    if _SEED.fullmatch(text.strip()) is None or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"a whole number from {-(2**63)} to {2**63 - 1} is expected")
    return int(text)


def parse_shard(text: str) -> tuple[int, int]:
    """ "1/4": which one, and of how many."""
    found = _SHARD.fullmatch(text.strip())
    if found is None:
        raise ValueError("a shard and how many there are, such as 1/4, are expected")
    number, count = int(found.group(1)), int(found.group(2))
    if not 1 <= number <= count:
        raise ValueError(f"of {count} shards there is no number {number}; they are counted from 1, such as 1/{count}")
    return number, count


def parse_flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError("true or false is expected")


def parse_text(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def parse_path(text: str) -> Path:
    if "\0" in text:
        raise ValueError("a path cannot hold the character NUL")
    try:
        return Path(parse_text(text)).expanduser()
    except RuntimeError:
        raise ValueError("there is no such user; write the whole path") from None


def parse_report(text: str) -> Path | None:
    """Where a report goes. Other commands have a flag of the same name, and environment and YAML say it to all of them:
    what means yes there is standard output here, what means no is none. A file of such a name is ./1.
    """
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return Path("-")
    return None if lowered in _FALSE else parse_path(text)


def parse_path_or(*words: str) -> Callable[[str], str]:
    """A path, as text, or one of `words` as it is."""

    def parse(text: str) -> str:
        return text if text in words else str(parse_path(text))

    return parse
