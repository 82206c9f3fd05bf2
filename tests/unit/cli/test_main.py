"""Main: every way in which a command can end has its exit code and its words, and only our own faults show a trace."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points, version

import pytest

from plait.cli.commands import COMMANDS, LOAD
from plait.cli.main import main
from plait.cli.table import specs_of
from plait.config.batch_options import BatchOptions
from plait.config.option import OptionSources
from plait.core.errors import EngineStopped, InvariantError, ModelError, PlaitError, UsageError


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | BaseException], int]:
    """Run `plait verify`, whose work is replaced by an end."""

    def run(end: int | BaseException) -> int:
        def work(sources: OptionSources) -> int:
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setitem(LOAD, "verify", lambda: work)
        return main(["verify"])

    return run


Ends = Callable[[int | BaseException], int]
Capture = pytest.CaptureFixture[str]


def test_the_commands_exit_code_is_passed_on(ends_with: Ends) -> None:
    assert (ends_with(0), ends_with(1)) == (0, 1)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (PlaitError("no space left"), 1),
        (ModelError("tiny.gguf is cut short"), 1),
        (EngineStopped("the engine was closed"), 1),
        (UsageError("--seed is 'x'; a whole number is expected"), 2),
    ],
)
def test_expected_trouble_is_one_line(error: PlaitError, exit_code: int, ends_with: Ends, capsys: Capture) -> None:
    assert ends_with(error) == exit_code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"plait: {error}\n")


def test_an_interrupt_is_no_error_of_anybody(ends_with: Ends, capsys: Capture) -> None:
    assert ends_with(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "plait: interrupted\n"


def test_nobody_reading_on_is_not_worth_a_word(ends_with: Ends, capsys: Capture) -> None:
    assert ends_with(BrokenPipeError()) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fault", [InvariantError("block 3 freed twice"), ZeroDivisionError("division by zero")])
def test_a_fault_of_ours_is_shown_whole(fault: Exception, ends_with: Ends, capsys: Capture) -> None:
    assert ends_with(fault) == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    name = type(fault).__name__
    assert lines[-1] == f"plait: internal error ({name}); please report it with the lines above"


def test_a_mistyped_command_line_ends_with_two(capsys: Capture) -> None:
    assert main(["verfy"]) == 2
    assert main([]) == 2
    assert main(["batch", "--outptu", "x"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "did you mean verify?" in lines[0]
    assert "did you mean --output?" in lines[2]


@pytest.fixture
def own_interrupts() -> Iterator[None]:
    """Put back what a command that owns its process changes."""
    before = signal.getsignal(signal.SIGINT)
    hooks = sys.excepthook, sys.unraisablehook
    yield
    sys.excepthook, sys.unraisablehook = hooks
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("own_interrupts")
def test_without_arguments_those_of_the_process_count(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.argv", ["plait", "--version"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"plait {version('plait')}\n"


def test_every_command_has_its_work() -> None:
    assert [command.name for command in COMMANDS] == list(LOAD)
    assert all(callable(load()) for load in LOAD.values())


def test_a_positional_is_an_option_of_its_command() -> None:
    for command in COMMANDS:
        fields = [spec.field for spec in specs_of(command)]
        assert len(fields) == len(set(fields)), f"{command.name} has an option twice"
        assert command.positional is None or command.positional in fields


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["batch"], "no input was given; name a JSONL file with -i FILE, or - for standard input"),
        (["batch", "-i", "x.jsonl"], "no output was given; name the file for the answers with -o FILE"),
    ],
)
def test_a_batch_needs_an_input_and_an_output(argv: list[str], message: str, capsys: Capture) -> None:
    assert BatchOptions().input is None
    assert main(argv) == 2
    assert capsys.readouterr().err == f"plait: {message}\n"


def test_a_command_inside_a_program_leaves_its_interrupts_alone(ends_with: Ends) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert ends_with(KeyboardInterrupt()) == 130
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("own_interrupts")
def test_work_is_interrupted_in_pythons_way_and_what_follows_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def work(sources: OptionSources) -> int:
        seen.append(signal.getsignal(signal.SIGINT))
        return 0

    monkeypatch.setitem(LOAD, "verify", lambda: work)
    monkeypatch.setattr("sys.argv", ["plait", "verify"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert main() == 0
    assert seen == [signal.default_int_handler]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


@pytest.mark.usefixtures("own_interrupts")
def test_interrupts_that_are_ignored_stay_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOAD, "verify", lambda: lambda sources: int(signal.getsignal(signal.SIGINT) is signal.SIG_IGN))
    monkeypatch.setattr("sys.argv", ["plait", "verify"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert main() == 1
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


COMMAND = "import sys; from plait.cli.main import main; sys.exit(main())"

# In the order in which they are imported; the last ones in the middle of what takes longest.
MODULES = ("argparse", "plait.cli.commands", "orjson", "numpy", "plait.build")


@pytest.mark.parametrize("module", MODULES)
def test_an_interrupt_while_modules_are_imported_is_one_line(module: str) -> None:
    command = [sys.executable, "-X", "importtime", "-c", COMMAND, "verify", "--model", "/nowhere.gguf"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip() == module:
                process.send_signal(signal.SIGINT)
                break
        rest = [line for line in process.stderr if not line.startswith("import time:")]
    assert (process.returncode, rest) == (130, ["plait: interrupted\n"])


START = "import sys; from plait.cli.start import start; sys.exit(start())"


@pytest.mark.parametrize("module", ["plait.cli.streams", "plait.core.errors", "plait.cli.main"])
def test_an_interrupt_before_there_is_a_command_ends_the_process_by_the_signal(module: str) -> None:
    command = [sys.executable, "-X", "importtime", "-c", START, "verify", "--model", "/nowhere.gguf"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip() == module:
                process.send_signal(signal.SIGINT)
                break
        rest = [line for line in process.stderr if not line.startswith("import time:")]
    if process.returncode == 2:
        # On a busy machine it may come when the command has ended by itself: then that is all it said.
        assert len(rest) == 1
        assert "/nowhere.gguf" in rest[0]
        return
    assert process.returncode in (-signal.SIGINT, 130)  # 130: it came so late that the command was there already
    assert rest in ([], ["plait: interrupted\n"])


def test_the_command_begins_with_start_and_start_leaves_signals_to_main() -> None:
    (entry,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "plait"]
    assert entry.value == "plait.cli.start:start"
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + START
    done = subprocess.run([sys.executable, "-c", script, "sevre"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.startswith("plait: 'sevre' is not a command")) == (2, True)


LATE = """
import sys
from plait.cli.commands import LOAD
from plait.cli.main import main

class Late:
    def __del__(self):
        raise KeyboardInterrupt if {in_callback} else ValueError("not to be hidden")

def work(sources):
    late = Late()
    del late
    return 0

LOAD["verify"] = lambda: work
code = main()
if {uncaught}:
    raise KeyboardInterrupt
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("in_callback", "uncaught", "returncode", "told"),
    [
        (True, False, 130, ""),
        (False, True, -signal.SIGINT, "not to be hidden"),
        (False, False, 0, "not to be hidden"),
    ],
)
def test_an_interrupt_where_nothing_can_catch_it_ends_quietly(
    in_callback: bool, uncaught: bool, returncode: int, told: str
) -> None:
    script = LATE.format(in_callback=in_callback, uncaught=uncaught)
    command = [sys.executable, "-c", script, "verify"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == returncode
    assert told in done.stderr
    assert "KeyboardInterrupt" not in done.stderr.replace("raise KeyboardInterrupt", "")


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_a_question_is_answered_without_importing_the_engine(argument: str) -> None:
    command = [sys.executable, "-X", "importtime", "-c", COMMAND, argument]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "plait.cli.arguments" in imported
    assert not imported & {"numpy", "pydantic", "orjson", "tqdm", "tokenizers", "jinja2", "asyncio", "plait.build"}
