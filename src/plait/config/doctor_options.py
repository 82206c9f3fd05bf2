"""Doctor options: what a user may say about a look at this machine."""

from __future__ import annotations

from dataclasses import dataclass

from plait.config.option import option
from plait.config.values import count_between, parse_flag


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    check: bool = option(False, parse_flag, "run MODEL for some seconds and set what was expected beside what came")
    context: int = option(4096, count_between(16, 1 << 24), "tokens of context that each user has", metavar="TOKENS")
    users: int = option(16, count_between(1, 1024), "requests at once whose speed is told", metavar="N")
    again: bool = option(False, parse_flag, "measure the machine anew instead of using what is known of it")
    json: bool = option(False, parse_flag, "print one JSON object instead")
