"""Chat: `plait chat`, a conversation in the terminal, or one answer to what is piped in.

Owns the loop, the commands that begin with /, and what an interrupt means: while an answer comes it stops the answer,
at the prompt it ends the program.
Invariant: standard output gets answers and nothing else, without a character that could steer a terminal.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from plait.build import LoadedModel, LocalEngine, check_scheduler, load_model, start_engine
from plait.cli.conversation import Answering, Conversation, Turn
from plait.cli.keyboard import Keyboard, history_file
from plait.cli.printable import printable
from plait.cli.streams import say, show, show_part
from plait.cli.terminal import download_progress
from plait.config.chat_options import ChatOptions
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources, nearest
from plait.core.errors import ModelError, RequestError, UsageError
from plait.core.request import FinishReason
from plait.core.sampling import SamplingParams
from plait.metrics.totals import Totals

PROMPT = "> "
MAX_TEXT_BYTES = 4 << 20
"""Of a file or of standard input: a million tokens, more than any context holds."""
SEQUENCES = 2
"""One conversation, and room for what of the last one can be used again."""
LATE_S = 0.5
"""An interrupt so soon after an answer was meant for the answer, which just ended by itself."""

HELP = """\
/help            this list
/clear           forget the conversation; the system prompt and the file of --file stay
/forget          forget the oldest exchange, to make room
/again           answer the last message once more
/system [TEXT]   what the model is told before the conversation; without TEXT: nothing
/stats           tokens and speed after each answer, on or off
/save FILE       write the conversation: JSON if FILE ends in .json, else text
/exit            end; so do Ctrl-D and Ctrl-C
A message that begins with / is sent if a blank stands before it."""


def run_chat(sources: OptionSources) -> int:
    options, engine_options = sources.read(ChatOptions), sources.read(EngineOptions)
    file_text = "" if options.file is None else read_text(options.file)
    check_scheduler(engine_options)
    # Before a model is loaded, because it may be the end of a pipe that brings nothing.
    piped = None if sys.stdin is not None and sys.stdin.isatty() else _read_piped(file_text)
    engine_options = replace(engine_options, max_num_seqs=SEQUENCES)
    with download_progress(engine_options.model, quiet=False) as progress:
        model = load_model(engine_options, progress, datetime.now)
    _check_template(model)
    engine = start_engine(engine_options, model, Totals(), say)
    try:
        sampling = SamplingParams(temperature=options.temperature, top_p=options.top_p, max_tokens=options.max_tokens)
        conversation = Conversation(engine, sampling, options.system, file_text)
        chat = Chat(conversation, stats=options.stats)
        if piped is not None:
            return chat.answer_once(piped)
        if options.file is not None:
            _check_file_fits(conversation, options.file)
        for line in _greeting(engine):
            say(line)
        keyboard = Keyboard(history_file() if options.history else None)
        keyboard.open()
        return chat.converse(keyboard)
    finally:
        engine.close()


@dataclass(frozen=True, slots=True)
class _Said:
    """An answer; not `is_whole`: it was stopped."""

    text: str
    is_whole: bool


def _write(text: str) -> None:
    if text:
        show_part(printable(text))


class Chat:
    """The loop around a conversation. `now`: seconds that only differences are taken of; `write`: where answers go."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        stats: bool,
        now: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] = _write,
    ) -> None:
        self._write = write
        self.conversation = conversation
        self._stats = stats
        self._now = now
        self._ended_s = -LATE_S
        self._loop = asyncio.new_event_loop()

    def answer_once(self, message: str) -> int:
        """One answer; interrupted, the program is."""
        try:
            if not self._ask(self.conversation.with_file(message)).is_whole:
                raise KeyboardInterrupt
            return 0
        finally:
            self._loop.close()

    def converse(self, keyboard: Keyboard) -> int:
        try:
            while (typed := self._typed(keyboard)) is not None:
                if typed.strip() in ("/exit", "/quit"):
                    break
                try:
                    self._take(typed)
                except RequestError as error:
                    say(str(error))
                except KeyboardInterrupt:
                    say("stopped")
                self._ended_s = self._now()
            return 0
        finally:
            self._loop.close()

    def _typed(self, keyboard: Keyboard) -> str | None:
        """A line; None: the end."""
        while True:
            try:
                return keyboard.line(PROMPT)
            except EOFError:
                say("")
                return None
            except KeyboardInterrupt:
                say("")
                if self._now() - self._ended_s > LATE_S:
                    return None
            except UnicodeDecodeError:
                say("what was typed is not text in this terminal's encoding; type it again")

    def _take(self, typed: str) -> None:
        if typed.startswith("/"):
            name, _, rest = typed[1:].partition(" ")
            self._command(name.strip(), rest.strip())
        elif typed.strip():
            self._exchange(typed.strip())

    def _exchange(self, message: str) -> None:
        sent = self.conversation.with_file(message)
        said = self._ask(sent)
        if said.is_whole or said.text:
            self.conversation.turns.append(Turn(sent, said.text))
        if not said.is_whole:
            say("stopped; what came is part of the conversation" if said.text else "stopped before the answer began")

    def _ask(self, message: str) -> _Said:
        """Show an answer as it comes."""
        answering = Answering(time.monotonic())
        tokens = self.conversation.tokens(message)
        is_whole = self._until_interrupted(self.conversation.answer(tokens, answering, self._write))
        text = answering.text
        if text and not text.endswith("\n"):
            show("")
        if answering.error is not None:
            raise RequestError(f"the answer could not be computed: {printable(answering.error)}")
        if answering.finish is FinishReason.LENGTH:
            say(self._why_cut(answering))
        if self._stats:
            say(answering.sentence())
        return _Said(text, is_whole)

    def _why_cut(self, answering: Answering) -> str:
        if answering.num_prompt + answering.num_output < self.conversation.limit:
            return f"the answer was cut after --max-tokens, {answering.num_output:,}"
        return (
            f"the answer was cut: the context of {self.conversation.limit:,} tokens is full; /forget drops the oldest "
            "exchange, /clear all of them"
        )

    def _until_interrupted(self, work: Coroutine[None, None, None]) -> bool:
        """Whether the work came to its end. An interrupt cancels it, however often it comes."""
        task = self._loop.create_task(work)
        ours = threading.current_thread() is threading.main_thread()
        # Where interrupts are ignored, or somebody else's, they stay so.
        ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours:
            self._loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            return False
        finally:
            if ours:
                self._loop.remove_signal_handler(signal.SIGINT)
        return True

    def _command(self, name: str, rest: str) -> None:
        commands: dict[str, Callable[[str], None]] = {
            "help": lambda rest: say(HELP),
            "clear": self._clear,
            "forget": self._forget,
            "again": self._again,
            "system": self._system,
            "stats": self._switch_stats,
            "save": self._save,
        }
        if name not in commands:
            close = nearest(f"/{name}", [f"/{one}" for one in (*commands, "exit", "quit")])
            raise RequestError(f"there is no command /{printable(name)}{close or '; /help lists them'}")
        commands[name](rest)

    def _clear(self, rest: str) -> None:
        self.conversation.turns.clear()
        say("the conversation is forgotten")

    def _forget(self, rest: str) -> None:
        if not self.conversation.turns:
            raise RequestError("there is nothing to forget yet")
        del self.conversation.turns[0]
        say(f"the oldest exchange is forgotten; {len(self.conversation.turns)} are left")

    def _again(self, rest: str) -> None:
        if not self.conversation.turns:
            raise RequestError("there is nothing to answer again yet")
        last = self.conversation.turns.pop()
        said = _Said("", False)
        try:
            said = self._ask(last.message)
        finally:
            self.conversation.turns.append(Turn(last.message, said.text) if said.is_whole or said.text else last)
        if not said.is_whole:
            say("stopped; what came takes the place of the last answer" if said.text else "stopped; nothing changed")

    def _system(self, rest: str) -> None:
        self.conversation.system = rest or None
        say("the model is told that from the next message on" if rest else "there is no system prompt now")

    def _switch_stats(self, rest: str) -> None:
        self._stats = not self._stats
        say(f"figures after each answer are {'on' if self._stats else 'off'}")

    def _save(self, rest: str) -> None:
        if not rest:
            raise RequestError("name a file: /save FILE")
        messages = self.conversation.messages()
        if not messages:
            raise RequestError("there is nothing to save yet")
        try:
            path = Path(rest).expanduser()
        except RuntimeError:
            raise RequestError(f"{rest}: there is no such user; write the whole path") from None
        if path.suffix == ".json":
            text = json.dumps({"messages": messages}, ensure_ascii=False, indent=2) + "\n"
        else:
            text = "\n".join(f"{one['role']}:\n{one['content']}\n" for one in messages)
        try:
            with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except FileExistsError:
            raise RequestError(f"{rest} exists; choose another name") from None
        except (OSError, ValueError) as error:
            raise RequestError(f"{rest} cannot be written: {getattr(error, 'strerror', None) or error}") from None
        say(f"{len(messages)} messages are in {rest}")


def read_text(path: Path) -> str:
    """The text of --file; `UsageError` with the reason if it is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--file {path} cannot be read: {error.strerror}; give an existing text file") from None
    except ValueError as error:
        raise UsageError(f"--file {path} cannot be read: {error}; give an existing text file") from None
    text = _decoded(raw, f"--file {path}")
    if not text.strip():
        raise UsageError(f"--file {path} is empty; give a file with a text")
    return text.strip()


def _read_piped(file_text: str) -> str:
    """All of standard input is one message."""
    text = "" if sys.stdin is None else _decoded(sys.stdin.buffer.read(MAX_TEXT_BYTES + 1), "standard input").strip()
    if not text and not file_text:
        raise UsageError("standard input is no terminal and brings no message; pipe one in: echo Hello | plait chat")
    return text


def _decoded(raw: bytes, source: str) -> str:
    if len(raw) > MAX_TEXT_BYTES:
        raise UsageError(f"{source} is larger than {MAX_TEXT_BYTES:,} bytes; give a part of it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source} is not UTF-8: byte {error.start:,} is {raw[error.start]:#04x}; convert it"
        ) from None
    if "\0" in text:
        raise UsageError(f"{source} holds the character NUL, so it is no text; give a text file")
    return text


def _check_template(model: LoadedModel) -> None:
    if model.template is None:
        raise ModelError(
            f"{model.name} has no chat template, so it cannot chat; take a model that was made for conversations "
            "(their names often end in Instruct or Chat), or continue raw text with plait batch and /v1/completions"
        )


def _check_file_fits(conversation: Conversation, path: Path) -> None:
    try:
        conversation.tokens(conversation.with_file(""))
    except RequestError as error:
        raise UsageError(f"--file {path} does not fit: {error}") from None


def _greeting(engine: LocalEngine) -> list[str]:
    model = engine.model
    found = [
        f"{printable(model.name)}: {model.program.num_parameters / 1e6:,.1f} M parameters, up to "
        f"{engine.sizes.max_model_tokens:,} tokens, {engine.executor.name} executor"
    ]
    if engine.executor.name != "native":
        found += engine.notes
    found += [f"warning: {warning}" for warning in model.tokenizer.warnings]
    return [*found, "/help lists commands, Ctrl-C stops an answer, Ctrl-D ends"]
