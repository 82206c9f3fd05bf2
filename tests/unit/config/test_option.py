"""Options: the strongest source wins, and a mistake is one line that names its source and the nearest known name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from plait.config.batch_options import BatchOptions
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources, nearest, option, options_of
from plait.config.values import parse_flag, parse_positive, parse_text
from plait.config.verify_options import VerifyOptions
from plait.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Kitchen:
    max_pots: int = option(3, parse_positive, "pots on the stove", metavar="N", short="-p")
    gas: bool = option(True, parse_flag, "cook with gas")
    dish: str = option("soup", parse_text, "what to cook", choices=("soup", "stew"))
    fan: str = option("auto", parse_text, "the fan", choices=("auto", "off"))


SPECS = options_of(Kitchen)


def read(
    command_line: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    yaml: str | None = None,
    folder: Path | None = None,
) -> Kitchen:
    file = None
    if yaml is not None:
        assert folder is not None
        file = folder / "kitchen.yaml"
        file.write_text(yaml, encoding="utf-8")
    return OptionSources(SPECS, command_line or {}, file, environment or {}).read(Kitchen)


def refusal(**sources: object) -> str:
    with pytest.raises(UsageError) as caught:
        read(**sources)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_fields_are_options() -> None:
    pots, gas, dish, _ = SPECS
    assert (pots.field, pots.flag, pots.short, pots.metavar, pots.default) == ("max_pots", "max-pots", "-p", "N", 3)
    assert (pots.is_switch, gas.is_switch, dish.is_switch) == (False, True, False)
    assert (dish.metavar, dish.choices, dish.short) == ("DISH", ("soup", "stew"), None)


def test_without_any_word_the_defaults_hold() -> None:
    assert read() == Kitchen() == Kitchen(3, True, "soup")


def test_the_command_line_beats_the_environment_beats_yaml(tmp_path: Path) -> None:
    line, env, yaml = {"max_pots": "5"}, {"PLAIT_MAX_POTS": "6"}, "max-pots: 7"
    assert read(line, env, yaml, tmp_path).max_pots == 5
    assert read({}, env, yaml, tmp_path).max_pots == 6
    assert read({}, {}, yaml, tmp_path).max_pots == 7


def test_a_source_that_loses_may_be_wrong(tmp_path: Path) -> None:
    assert read({"max_pots": "5"}, {"PLAIT_MAX_POTS": "many"}, "max-pots: -1", tmp_path).max_pots == 5


def test_sources_mix_field_by_field(tmp_path: Path) -> None:
    assert read({"gas": "false"}, {"PLAIT_DISH": "stew"}, "max_pots: 9", tmp_path) == Kitchen(9, False, "stew")


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"command_line": {"max_pots": "0"}}, "--max-pots is '0'; a number of at least 1 is expected"),
        (
            {"environment": {"PLAIT_GAS": "maybe"}},
            "environment variable PLAIT_GAS is 'maybe'; true or false is expected",
        ),
        ({"command_line": {"dish": "soop"}}, "--dish is 'soop'; choose one of soup, stew; did you mean soup?"),
        ({"command_line": {"dish": "bread"}}, "--dish is 'bread'; choose one of soup, stew"),
        ({"environment": {"PLAIT_DISH": ""}}, "environment variable PLAIT_DISH is ''; choose one of soup, stew"),
    ],
)
def test_a_wrong_value_names_its_source(sources: dict[str, object], message: str) -> None:
    assert refusal(**sources) == message


def test_a_wrong_value_in_a_file_names_the_file(tmp_path: Path) -> None:
    message = refusal(yaml="max-pots: none", folder=tmp_path)
    assert message.startswith(f"--config {tmp_path}/kitchen.yaml: max-pots is 'none'; a whole number such as")


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("", Kitchen()),
        ("# nothing\n", Kitchen()),
        ("max-pots: 4\ngas: no\n", Kitchen(4, False)),
        ("max_pots: 4", Kitchen(4)),
        ('max-pots: "4k"', Kitchen(4000)),
        ("max-pots: 4.0", Kitchen(4)),
        ("gas: 0", Kitchen(gas=False)),
        ("dish: stew", Kitchen(dish="stew")),
        # To YAML this word is false.
        ("fan: off", Kitchen(fan="off")),
    ],
)
def test_yaml_may_be_written_as_yaml_is(yaml: str, expected: Kitchen, tmp_path: Path) -> None:
    assert read(yaml=yaml, folder=tmp_path) == expected


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("max-pot: 4", "names the option 'max-pot', which does not exist; did you mean max-pots?"),
        ("zzz: 4", "names the option 'zzz', which does not exist"),
        ("1: 4", "names the option 1, which does not exist"),
        ("max-pots:", "max-pots is None; one value is expected"),
        ("max-pots: [1, 2]", "max-pots is [1, 2]; one value is expected"),
        ("max-pots: 2024-01-02", "one value is expected"),
        ("- max-pots", "holds no options; write lines such as `max-model-len: 4096`"),
        ("just words", "holds no options"),
        ("max-pots: [", "is not YAML: "),
        ("a: 2024-13-45", "is not YAML: month must be in 1..12"),
        ("a: " + "[" * 10_000, "is not YAML: "),
        ("a: !!python/object/apply:os.system [ls]", "is not YAML: could not determine a constructor"),
    ],
)
def test_yaml_that_cannot_be_used_is_one_line(yaml: str, message: str, tmp_path: Path) -> None:
    found = refusal(yaml=yaml, folder=tmp_path)
    assert found.startswith(f"--config {tmp_path}/kitchen.yaml")
    assert message in found


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=f"cannot be read: {reason}; give an existing YAML file"):
            OptionSources(SPECS, {}, path, {})
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"max-pots: \xff\xfe")
    with pytest.raises(UsageError, match="is not YAML"):
        OptionSources(SPECS, {}, binary, {})


def test_the_environment_may_hold_what_is_none_of_ours() -> None:
    assert read(environment={"PLAIT_PORT": "tcp://10.0.0.1:80", "MAX_POTS": "9"}) == Kitchen()


def test_the_process_has_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_MAX_POTS", "8")
    assert OptionSources(SPECS, {}).read(Kitchen).max_pots == 8


def test_the_nearest_name_is_offered_only_if_it_is_near() -> None:
    assert nearest("max-nun-seqs", ["max-num-seqs", "seed"]) == "; did you mean max-num-seqs?"
    assert nearest("colour", ["max-num-seqs", "seed"]) == ""


@pytest.mark.parametrize("config", [EngineOptions, BatchOptions, VerifyOptions])
def test_every_option_can_be_read_from_its_own_default(config: type) -> None:
    """A default is a value that a user could have typed."""
    for spec in options_of(config):
        if spec.default is not None:
            assert spec.parse(str(spec.default)) == spec.default
        assert spec.help
        assert spec.help[0].islower() or spec.help[:6] == "OpenAI"
    assert OptionSources(options_of(config), {}, None, {}).read(config) == config()


def test_commands_that_share_options_do_not_contradict_each_other() -> None:
    for extra in (BatchOptions, VerifyOptions):
        specs = [*options_of(EngineOptions), *options_of(extra)]
        assert len({spec.field for spec in specs}) == len(specs)
        shorts = [spec.short for spec in specs if spec.short is not None]
        assert len(set(shorts)) == len(shorts)
