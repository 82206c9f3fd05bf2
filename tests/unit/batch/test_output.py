"""The files that a user reads: what may be overwritten, and that a whole output appears at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.batch.jobs import config_of, restarted

from plait.batch.config import BatchConfig
from plait.batch.ledger import Ledger
from plait.batch.output import OutputFiles, check_output, is_published
from plait.core.errors import PlaitError, UsageError


@pytest.fixture
def config(tmp_path: Path) -> BatchConfig:
    return config_of(tmp_path, [])


def test_the_files_of_a_job_lie_beside_its_output(config: BatchConfig) -> None:
    assert config.ledger == config.output.with_name("out.jsonl.ledger")
    assert config.partial == config.output.with_name("out.jsonl.partial")


def test_no_line_in_flight_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_in_flight is 0"):
        BatchConfig(input="-", output=tmp_path / "out.jsonl", max_in_flight=0)


def test_a_fresh_output_is_fine(config: BatchConfig) -> None:
    check_output(config)


@pytest.mark.parametrize("suffix", ["", ".partial", ".new"])
def test_a_file_that_no_batch_made_is_not_overwritten(config: BatchConfig, suffix: str) -> None:
    config.output.with_name(config.output.name + suffix).write_text("precious")
    with pytest.raises(UsageError, match="exists and was not made by a batch") as caught:
        check_output(config)
    assert "--restart" in str(caught.value)
    check_output(restarted(config))
    config.ledger.touch()
    check_output(config)


def test_the_input_is_not_overwritten_whatever_it_is_called(tmp_path: Path, config: BatchConfig) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(config.input)
    for output in (Path(config.input), link):
        with pytest.raises(UsageError, match="is the input itself"):
            check_output(BatchConfig(input=config.input, output=output, restart=True))


SIDE_FILES = ["", ".partial", ".new", ".ledger", ".ledger-wal", ".ledger-shm", ".ledger-journal"]


@pytest.mark.parametrize("suffix", SIDE_FILES)
@pytest.mark.parametrize("restart", [False, True])
def test_an_input_that_bears_the_name_of_a_file_of_the_job_is_kept(tmp_path: Path, suffix: str, restart: bool) -> None:
    source = tmp_path / f"out.jsonl{suffix}"
    source.write_text("precious")
    other_name = tmp_path / "hard link.jsonl"
    other_name.hardlink_to(source)
    for name in (source, other_name):
        with pytest.raises(UsageError, match=r"is the input itself.*choose another output"):
            check_output(BatchConfig(input=str(name), output=tmp_path / "out.jsonl", restart=restart))
    assert source.read_text() == "precious"


def test_standard_input_that_comes_from_a_file_of_the_job_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "out.jsonl.new"
    source.write_text("precious")
    with source.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(UsageError, match=r"out\.jsonl\.new is the input itself"):
            check_output(BatchConfig(input="-", output=tmp_path / "out.jsonl"))


def test_every_file_that_a_job_leaves_or_makes_is_known(config: BatchConfig, tmp_path: Path) -> None:
    with closing(Ledger.open(config.ledger)), closing(OutputFiles(config)) as output:
        output.begin([])
        assert {entry for entry in tmp_path.iterdir() if str(entry) != config.input} <= set(config.written)


@pytest.mark.parametrize("restart", [False, True])
def test_only_a_regular_file_is_replaced(tmp_path: Path, restart: bool) -> None:
    pipe, dangling = tmp_path / "pipe", tmp_path / "dangling"
    os.mkfifo(pipe)
    dangling.symlink_to(tmp_path / "nothing")
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    for output in (pipe, dangling, device, Path("/dev/null")):
        with pytest.raises(UsageError, match="is no regular file"):
            check_output(BatchConfig(input="-", output=output, restart=restart))


def test_an_output_without_a_folder_or_that_is_one_is_refused(tmp_path: Path, config: BatchConfig) -> None:
    with pytest.raises(UsageError, match="is no directory; make it first"):
        check_output(BatchConfig(input=config.input, output=tmp_path / "missing" / "out.jsonl"))
    with pytest.raises(UsageError, match="is no directory"):
        check_output(BatchConfig(input=config.input, output=Path(config.input) / "out.jsonl"))
    with pytest.raises(UsageError, match="is a directory"):
        check_output(BatchConfig(input=config.input, output=tmp_path))


def refusal_without_rights(output: Path) -> str:
    """What `check_output` says to a user with fewer rights: root may write anywhere."""
    question = (
        "import os, sys; from pathlib import Path; from plait.batch.config import BatchConfig;"
        "from plait.batch.output import check_output;"
        "os.geteuid() or os.setuid(65534);"
        "check_output(BatchConfig('-', Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", question, str(output)]
    return subprocess.run(command, capture_output=True, text=True, cwd="/").stderr


def test_a_folder_that_cannot_be_written_to_is_found_out_early() -> None:
    assert "/usr cannot be written to; choose an output in another folder" in refusal_without_rights(
        Path("/usr/out.jsonl")
    )


def test_a_ledger_that_cannot_be_written_to_is_found_out_early() -> None:
    # The folders of pytest are closed to other users.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        output = Path(folder) / "out.jsonl"
        ledger = output.with_name("out.jsonl.ledger")
        Ledger.open(ledger).close()
        ledger.chmod(0o444)
        assert f"{ledger} cannot be written to; make it writable" in refusal_without_rights(output)
        ledger.chmod(0o666)
        assert refusal_without_rights(output) == ""


def test_the_partial_file_grows_and_the_output_appears_whole(config: BatchConfig) -> None:
    config.partial.write_text('{"torn')
    with closing(OutputFiles(config)) as output:
        output.begin(["1"])
        output.append(["3", "2"])
        assert config.partial.read_text() == "1\n3\n2\n"
        assert not config.output.exists()
        sha256 = output.publish(["1", "2", "3"])
    assert config.output.read_text() == "1\n2\n3\n"
    assert is_published(config.output, sha256)
    assert not is_published(config.partial, sha256)
    config.output.write_text("1\n2\n4\n")
    assert not is_published(config.output, sha256)
    assert not config.partial.exists()
    assert not config.unpublished.exists()


def test_an_old_output_stays_until_the_new_one_is_whole(config: BatchConfig) -> None:
    config.output.write_text("old\n")

    def outputs_that_fail() -> object:
        yield "new"
        raise OSError(28, "No space left on device")

    with closing(OutputFiles(config)) as output, pytest.raises(PlaitError, match="No space left on device"):
        output.publish(outputs_that_fail())  # type: ignore[arg-type]
    assert config.output.read_text() == "old\n"


def test_a_full_disk_is_one_clear_line(config: BatchConfig) -> None:
    config.partial.symlink_to("/dev/full")
    with closing(OutputFiles(config)) as output:
        output.begin([])
        with pytest.raises(PlaitError, match="could not be written: No space left on device") as caught:
            output.append(["x"])
    assert "finished lines are safe in the ledger" in str(caught.value)
