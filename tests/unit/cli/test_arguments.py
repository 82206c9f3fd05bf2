"""Arguments: what may be typed, and how each mistake is answered: one line, the nearest name, exit code 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from plait.cli.arguments import parse_arguments
from plait.cli.table import Command
from plait.config.option import option
from plait.config.values import parse_flag, parse_positive, parse_text
from plait.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Kitchen:
    max_pots: int = option(3, parse_positive, "pots on the stove, 50% of them full", metavar="N", short="-p")
    gas: bool = option(True, parse_flag, "cook with gas")
    loud: bool = option(False, parse_flag, "sing")
    cook: str | None = option(None, parse_text, "who cooks; default: you")
    dish: str = option("soup", parse_text, "what to cook", choices=("soup", "stew"))


@dataclass(frozen=True, slots=True)
class Oven:
    heat: int = option(180, parse_positive, "degrees")
    hidden: bool = option(False, parse_flag, "what hardly anybody needs", rare=True)


COMMANDS = (
    Command("boil", "Boil it.", (Kitchen,), "dish"),
    Command("roast", "Roast it.", (Kitchen,)),
    Command("bake bread", "Bake bread.", (Oven,)),
    Command("bake cake", "Bake a cake.", (Oven,)),
    Command("show", "Show a dish.", (Kitchen,), "dish"),
    Command("show menu", "Show the menu.", (Oven,)),
)
GROUPS = {"bake": "Bake something."}


def kitchen(*argv: str) -> Kitchen:
    return parse_arguments(argv, COMMANDS, "1.2").sources.read(Kitchen)


def refusal(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_arguments(argv, COMMANDS, "1.2").sources.read(Kitchen)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_command_line_is_a_command_and_its_options() -> None:
    assert parse_arguments(["roast"], COMMANDS, "1.2").command == "roast"
    assert kitchen("boil") == Kitchen()
    assert kitchen("boil", "--max-pots", "5", "--cook", "me") == Kitchen(5, cook="me")
    assert kitchen("boil", "--max-pots=5", "-p", "6") == Kitchen(6), "the last word holds"


def test_switches_turn_on_and_off() -> None:
    assert kitchen("boil", "--loud", "--no-gas") == Kitchen(gas=False, loud=True)
    assert kitchen("boil", "--gas", "--no-loud") == Kitchen()
    assert kitchen("boil", "--no-gas", "--gas") == Kitchen()


def test_a_bare_argument_fills_the_field_of_its_command() -> None:
    assert kitchen("boil", "stew") == kitchen("boil", "--dish", "stew") == Kitchen(dish="stew")
    assert kitchen("boil", "-p", "2", "stew") == Kitchen(2, dish="stew")


def test_negative_numbers_are_values() -> None:
    assert "--max-pots is '-5'; a whole number" in refusal("boil", "--max-pots", "-5")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no command was given; choose one of boil, roast, bake, show; see plait --help"),
        (["--verison"], "'--verison' is not an option of plait; did you mean --version?"),
        (["--halp", "boil"], "'--halp' is not an option of plait; did you mean --help?"),
        (["--xyz=1"], "'--xyz=1' is not an option of plait; see plait --help"),
        (["boil", "--max-pot", "5"], "'--max-pot' is not an option of plait boil; did you mean --max-pots?"),
        (["boil", "--max-pot=5"], "'--max-pot=5' is not an option of plait boil; did you mean --max-pots?"),
        (["boil", "--no-gaz"], "'--no-gaz' is not an option of plait boil; did you mean --no-gas?"),
        (["boil", "--confg", "x"], "'--confg' is not an option of plait boil; did you mean --config?"),
        (["bake"], "plait bake needs one of bread, cake; see plait bake --help"),
        (["bake", "--heat", "3"], "plait bake needs one of bread, cake; see plait bake --help"),
        (["bake", "caek"], "'caek' is none of plait bake's; choose one of bread, cake; did you mean cake?"),
        (["bake", "cake", "--haet", "1"], "'--haet' is not an option of plait bake cake; did you mean --heat?"),
        (["boil", "--zzzzz"], "'--zzzzz' is not an option of plait boil; see plait boil --help"),
        (["boil", "-x"], "'-x' is not an option of plait boil; see plait boil --help"),
        (["boil", "--max"], "'--max' is not an option of plait boil; did you mean --max-pots?"),
        (["boil", "soup", "stew"], "'stew' is one argument too many for plait boil; see plait boil --help"),
        (["roast", "soup"], "'soup' is one argument too many for plait roast; see plait roast --help"),
        (["boil", "stew", "--dish", "soup"], "dish was given twice, as 'stew' and as 'soup'"),
        (["boil", "--cook"], "argument --cook: expected one argument; see plait boil --help"),
        (["boil", "--no-cook"], "'--no-cook' is not an option of plait boil; did you mean --cook?"),
        (["boil", "--cook", "--gas"], "argument --cook: expected one argument; see plait boil --help"),
        (
            ["boil", "--cook", "-5m"],
            "--cook is followed by '-5m', which reads as an option; write --cook=-5m if it is the value, or see "
            "plait boil --help",
        ),
        (["boil", "--gas=no"], "--gas takes no value, but 'no' was given; see plait boil --help"),
        (["boil", "sope"], "--dish is 'sope'; choose one of soup, stew; did you mean soup?"),
        (["boil", "-p", "many"], "--max-pots is 'many'; a whole number such as 4096, 32k (32,000) or 32K (32,768)"),
    ],
)
def test_a_mistake_is_one_line_with_a_way_out(argv: list[str], message: str) -> None:
    assert refusal(*argv).startswith(message)


def test_a_mistyped_command_is_answered_with_the_nearest() -> None:
    assert refusal("biol").endswith("; did you mean boil?")
    assert refusal("zzz").endswith("; see plait --help")
    assert refusal("version").endswith("; did you mean --version?")
    assert refusal("hlep").endswith("; did you mean --help?")
    assert "boil" in refusal("zzz"), "all of them are listed"


def test_a_file_of_options_is_named_by_config(tmp_path: Path) -> None:
    file = tmp_path / "kitchen.yaml"
    file.write_text("max-pots: 7\ndish: stew\n")
    assert kitchen("boil", "--config", str(file), "soup") == Kitchen(7)
    file.write_text("max-pot: 7\n")
    assert "did you mean max-pots?" in refusal("boil", "--config", str(file))


def test_a_command_may_have_two_words() -> None:
    assert parse_arguments(["bake", "cake", "--heat", "200"], COMMANDS, "1.2").command == "bake cake"
    assert parse_arguments(["show", "menu"], COMMANDS, "1.2").command == "show menu"
    assert parse_arguments(["show", "stew"], COMMANDS, "1.2").command == "show"


def printed_by(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(argv, COMMANDS, "1.2", GROUPS)
    assert caught.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


@pytest.mark.parametrize(
    "argv", [["-h"], ["--help"], ["boil", "-h"], ["roast", "--help"], ["bake", "-h"], ["bake", "cake", "--help=all"]]
)
def test_help_prints_and_ends_well(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert printed_by(capsys, *argv).startswith("usage: plait ")


def test_help_is_asked_for_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed_by(capsys, "boil", "--cook", "me", "--help") == printed_by(capsys, "boil", "--help")


def test_a_group_is_one_line_of_plaits_help_and_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    whole = printed_by(capsys, "--help")
    assert "  bake          Bake something.\n" in whole
    assert "cake  " not in whole
    assert "  show          Show a dish.\n" in whole
    assert "  cake          Bake a cake.\n" in printed_by(capsys, "bake", "--help")


def test_help_shows_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(printed_by(capsys, "boil", "-h").split())
    assert "-p, --max-pots N pots on the stove, 50% of them full [3]" in text
    assert "--gas cook with gas (on; --no-gas turns it off)" in text
    assert "--loud sing" in text
    assert "--cook COOK who cooks; default: you" in text
    assert "--dish WORD what to cook (soup, stew) [soup]" in text


def test_rare_options_are_shown_when_all_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    usual = printed_by(capsys, "bake", "cake", "--help")
    assert "--hidden" not in usual
    assert "--help=all shows 1 more options." in usual
    assert "--hidden" in printed_by(capsys, "bake", "cake", "--help=all")


def test_help_about_a_word_shows_what_holds_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_by(capsys, "bake", "cake", "--help=hardly")
    assert "--hidden" in text
    assert "--heat" not in text
    assert "no option of plait boil is about 'tin'; --help=all shows all of them" in refusal("boil", "--help=tin")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--version"], COMMANDS, "1.2")
    assert caught.value.code == 0
    assert capsys.readouterr().out == "plait 1.2\n"
