"""Engine options: the limits of each option alone, whatever source a value came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources, options_of
from plait.core.errors import UsageError

SPECS = options_of(EngineOptions)


def typed(field: str, value: str) -> EngineOptions:
    return OptionSources(SPECS, {field: value}, environment={}).read(EngineOptions)


@pytest.mark.parametrize(
    ("field", "value", "limits"),
    [
        ("max_num_seqs", "999999999999999999M", "from 1 to 65536"),
        ("max_num_seqs", "0", "from 1 to 65536"),
        ("max_num_batched_tokens", "999999999999999999M", "from 1 to 1048576"),
        ("max_num_batched_tokens", "0", "from 1 to 1048576"),
        ("max_model_len", "1", "of at least 2"),
        ("block_size", "512", "from 1 to 256"),
        ("seed", "99999999999999999999", "from -9223372036854775808 to 9223372036854775807"),
    ],
)
def test_what_no_engine_can_take_is_refused_with_the_limits(field: str, value: str, limits: str) -> None:
    with pytest.raises(UsageError) as caught:
        typed(field, value)
    message = str(caught.value)
    assert message.startswith(f"--{field.replace('_', '-')} is {value!r}; a ")
    assert limits in message


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_num_seqs", 65_536), ("max_num_batched_tokens", 2**20), ("max_model_len", 2), ("block_size", 256)],
)
def test_the_limits_themselves_are_fine(field: str, value: int) -> None:
    assert getattr(typed(field, str(value)), field) == value


def test_the_source_of_a_value_is_named(tmp_path: Path) -> None:
    variable = OptionSources(SPECS, {}, environment={"PLAIT_MAX_NUM_SEQS": "1m"})
    with pytest.raises(UsageError, match=r"^environment variable PLAIT_MAX_NUM_SEQS is '1m'; a number from 1 to 65536"):
        variable.read(EngineOptions)
    path = tmp_path / "plait.yaml"
    path.write_text("max-model-len: 1\n")
    with pytest.raises(UsageError, match=r"plait\.yaml: max-model-len is '1'; a number of at least 2"):
        OptionSources(SPECS, {}, path, environment={}).read(EngineOptions)


def test_every_default_passes_its_own_parser() -> None:
    for spec in SPECS:
        if spec.default is not None:
            assert spec.parse(str(spec.default)) == spec.default
