"""Completion options: what a user may say about a shell's completion script."""

from __future__ import annotations

from dataclasses import dataclass

from plait.config.option import option
from plait.config.values import parse_text

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    shell: str = option("bash", parse_text, "which shell the script is for", choices=SHELLS)
