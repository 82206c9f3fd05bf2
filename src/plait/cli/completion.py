"""Completion: scripts that complete commands, options and their values in bash, zsh and fish.

Owns the scripts, made from the tables of commands and options. Invariant: pressing TAB starts no Python; what can be
typed is in the script itself, so it is made anew with every release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plait.cli.streams import show
from plait.cli.table import Command, specs_of
from plait.config.completion_options import CompletionOptions
from plait.config.option import OptionSources, OptionSpec
from plait.config.values import parse_path
from plait.weights.catalogue import CATALOGUE

_FILES, _FOLDERS = "FILES", "FOLDERS"

_BASH = """\
# plait completion for bash: add   eval "$(plait completion bash)"   to ~/.bashrc
_plait() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" name="${{COMP_WORDS[1]}}"
    local words="" values="" place=2
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{firsts} --help --version" -- "$word"))
        return
    fi
    case "$name" in
{groups}
    esac
    case "$name $before" in
{values}
    esac
    case "$values" in
        FILES) COMPREPLY=($(compgen -f -- "$word")); compopt -o filenames 2>/dev/null; return ;;
        FOLDERS) COMPREPLY=($(compgen -d -- "$word")); compopt -o filenames 2>/dev/null; return ;;
        ?*) COMPREPLY=($(compgen -W "$values" -- "$word")); return ;;
    esac
    case "$name" in
{commands}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$words --help --help=all" -- "$word")) ;;
        *)
            COMPREPLY=($(compgen -W "$values" -- "$word"))
            if [ "$place" = FILES ]; then
                COMPREPLY+=($(compgen -f -- "$word")); compopt -o filenames 2>/dev/null
            fi ;;
    esac
}}
complete -F _plait plait
"""
_ZSH = '# plait completion for zsh: add   eval "$(plait completion zsh)"   to ~/.zshrc\n'
_ZSH_START = "autoload -Uz compinit bashcompinit\n(( $+functions[compdef] )) || compinit\nbashcompinit\n"
_FISH = (
    "# plait completion for fish: plait completion fish > ~/.config/fish/completions/plait.fish\ncomplete -c plait -f\n"
)


@dataclass(frozen=True, slots=True)
class _Values:
    """What may follow an option, or stand alone: words, and files or folders."""

    words: tuple[str, ...] = ()
    paths: str = ""


def run_completion(commands: Sequence[Command], sources: OptionSources) -> int:
    options = sources.read(CompletionOptions)
    show(script(options.shell, commands).rstrip("\n"))
    return 0


def script(shell: str, commands: Sequence[Command]) -> str:
    if shell == "fish":
        return _FISH + "\n".join(_fish_lines(commands)) + "\n"
    bash = _bash(commands)
    # zsh reads bash's functions; only the first line, which says where to put it, is another.
    return bash if shell == "bash" else _ZSH + _ZSH_START + bash.partition("\n")[2]


def _values_of(spec: OptionSpec) -> _Values:
    if spec.field == "model":
        return _Values(tuple(sorted(CATALOGUE)), _FILES)
    if spec.choices:
        return _Values(spec.choices)
    if spec.parse is parse_path or spec.metavar == "FILE":
        return _Values(paths=_FILES if spec.metavar == "FILE" else _FOLDERS)
    return _Values()


def _flags(specs: Sequence[OptionSpec]) -> Iterator[str]:
    yield "--config"
    for spec in specs:
        yield f"--{spec.flag}"
        if spec.is_switch and spec.default:
            yield f"--no-{spec.flag}"


def _bash(commands: Sequence[Command]) -> str:
    names = [command.name for command in commands]
    firsts = list(dict.fromkeys(name.split()[0] for name in names))
    groups = [first for first in firsts if any(name.startswith(f"{first} ") for name in names)]
    return _BASH.format(
        firsts=" ".join(firsts),
        groups="\n".join(_bash_group(first, names) for first in groups) or "        *) ;;",
        values="\n".join(line for command in commands for line in _bash_values(command)),
        commands="\n".join(_bash_command(command) for command in commands),
    )


def _bash_group(first: str, names: Sequence[str]) -> str:
    """The second word is completed with what there is, or joined to the name."""
    seconds = [name.split()[1] for name in names if name.startswith(f"{first} ")]
    ends = "" if first in names else " return;"
    return (
        f'        {first})\n            if [ "$COMP_CWORD" -eq 2 ] && [ "${{word#-}}" = "$word" ]; then\n'
        f'                values="{" ".join(seconds)}"; COMPREPLY=($(compgen -W "$values" -- "$word"))\n'
        f'                [ -n "$COMPREPLY" ] && return; values="";{ends}\n            fi\n'
        f'            case " {" ".join(seconds)} " in\n'
        '                *" ${COMP_WORDS[2]} "*) name="$name ${COMP_WORDS[2]}" ;;\n            esac ;;'
    )


def _bash_values(command: Command) -> Iterator[str]:
    """Lines of a case: what may stand behind an option that takes a value."""
    yield f'        "{command.name} --config") values=FILES ;;'
    for spec in specs_of(command):
        if spec.is_switch:
            continue
        names = [f"--{spec.flag}"] if spec.short is None else [f"--{spec.flag}", spec.short]
        pattern = "|".join(f'"{command.name} {name}"' for name in names)
        values = _values_of(spec)
        if values.words and values.paths:
            words = " ".join(values.words)
            yield (
                f"        {pattern})\n"
                f'            COMPREPLY=($(compgen -W "{words}" -- "$word") $(compgen -f -- "$word"))\n'
                "            compopt -o filenames 2>/dev/null; return ;;"
            )
        else:
            # A value about which nothing is known: no flags in its place.
            known = values.paths or " ".join(values.words)
            yield f"        {pattern}) {f'values={_quoted(known)}' if known else 'return'} ;;"


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _bash_command(command: Command) -> str:
    specs = specs_of(command)
    bare = next((_values_of(spec) for spec in specs if spec.field == command.positional), _Values())
    extra = f' values="{" ".join(bare.words)}"; place={bare.paths or "NONE"}' if command.positional else ""
    return f'        "{command.name}") words="{" ".join(_flags(specs))}";{extra} ;;'


def _fish_lines(commands: Sequence[Command]) -> Iterator[str]:
    names = [command.name for command in commands]
    for first in dict.fromkeys(name.split()[0] for name in names):
        yield f"complete -c plait -n __fish_use_subcommand -a {first}"
    for command in commands:
        first, _, second = command.name.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}"
        if second:
            others = " ".join(name.split()[1] for name in names if name.startswith(f"{first} "))
            yield f"complete -c plait -n '{seen}; and not __fish_seen_subcommand_from {others}' -a {second}"
            seen += f"; and __fish_seen_subcommand_from {second}"
        yield f"complete -c plait -n '{seen}' -l config -r -F -d 'YAML file with options'"
        for spec in specs_of(command):
            yield _fish_option(spec, seen)
            if spec.field == command.positional:
                values = _values_of(spec)
                yield f"complete -c plait -n '{seen}' {'-F ' if values.paths else ''}-a '{' '.join(values.words)}'"


def _fish_option(spec: OptionSpec, seen: str) -> str:
    about = spec.help.replace("\\", "\\\\").replace("'", "\\'")
    short = "" if spec.short is None else f" -s {spec.short[1:]}"
    line = f"complete -c plait -n '{seen}' -l {spec.flag}{short} -d '{about}'"
    if spec.is_switch:
        return line
    values = _values_of(spec)
    paths = " -F" if values.paths else ""
    words = f" -a '{' '.join(values.words)}'" if values.words else ""
    return f"{line} -r{paths}{words}"
