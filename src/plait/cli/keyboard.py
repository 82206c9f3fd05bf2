"""Keyboard: lines that a person types, with arrow keys and a history that outlives the program.

Owns the history's file. Python's own readline does the editing: it is there wherever Python is, costs no start-up time,
and knows the user's ~/.inputrc; a library would bring more keys and a hundred modules.
Invariant: a history that cannot be read or written costs a word, never a conversation.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from plait.cli.streams import say
from plait.config.places import state_dir

HISTORY_LINES = 1000


def history_file() -> Path:
    return state_dir() / "chat_history"


class Keyboard:
    """`history` None: what is typed is forgotten with the program."""

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._add_to: Path | None = None
        self._num_lines = 0

    def open(self) -> None:
        try:
            import readline
        except ImportError:
            return  # a Python without it: lines can be typed, not edited
        readline.set_history_length(HISTORY_LINES)
        if self._history is None:
            return
        try:
            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Nobody else may read what was asked.
            os.close(os.open(self._history, os.O_CREAT | os.O_RDWR, 0o600))
            readline.read_history_file(self._history)
            self._num_lines = readline.get_current_history_length()
            if self._num_lines > 2 * HISTORY_LINES:
                readline.write_history_file(self._history)
            self._add_to = self._history
        except OSError as error:
            say(f"no history: {self._history}: {error.strerror}; --no-history leaves it out")

    def line(self, prompt: str) -> str:
        """What was typed. `EOFError`: Ctrl-D, `KeyboardInterrupt`: Ctrl-C."""
        if not sys.stdout.isatty():
            # Answers go into a file; the prompt must not.
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        typed = input(prompt)
        self._keep()
        return typed

    def _keep(self) -> None:
        """At once, because the program may be killed, and another chat may be open."""
        if self._add_to is None:
            return
        import readline

        try:
            new = readline.get_current_history_length() - self._num_lines
            if new > 0:  # an empty line is none
                readline.append_history_file(new, self._add_to)
                self._num_lines += new
        except OSError as error:
            say(f"the history is not kept any more: {self._add_to}: {error.strerror}")
            self._add_to = None
