"""Completion of our commands in bash and zsh: a script for the shell to source, made from the argparse parser.

The script for bash walks the words as the command itself does: options, their values, subcommands, and for
``bpslaunch`` and ``bps ab`` the point where the user's command begins, which from there on is completed as if it stood
alone.  The one for zsh leaves that walk to zsh's own ``_arguments``.

An option whose metavar is ``DIR`` takes a folder; one with choices takes these; others take what cannot be guessed.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["SHELLS", "script"]

SHELLS = ("bash", "zsh")

_FOLDER = "DIR"


@dataclass(frozen=True)
class _Option:
    names: tuple[str, ...]
    help: str
    metavar: str | None
    """None for an option that takes no value."""
    choices: tuple[str, ...]
    repeats: bool = False
    """Whether it may be given several times."""


@dataclass(frozen=True)
class _Level:
    """A command or subcommand: ``bps``, ``bps server``."""

    words: str
    options: tuple[_Option, ...]
    positionals: tuple[_Option, ...]
    subcommands: Mapping[str, _Level] = field(default_factory=dict)
    help: str = ""
    runs_command: bool = False

    def walk(self) -> Iterator[_Level]:
        """This level and all below it."""
        yield self
        for each in self.subcommands.values():
            yield from each.walk()


def script(
    shell: str,
    parser: argparse.ArgumentParser,
    origin: str,
    *,
    runs_command: bool = False,
    runners: Collection[str] = (),
) -> str:
    """The text that a shell sources.

    Args:
        shell: one of :data:`SHELLS`.
        parser: the parser of the command, named by its ``prog``.
        origin: the command that prints it, without the name of the shell, for the script's first lines.
        runs_command: whether the first word that is no option begins a command of the user's.
        runners: subcommands for which that is so: ``bps ab``.
    """
    level = _read(parser, parser.prog, runners={*runners, *([parser.prog] if runs_command else [])})
    head = f"# Completion of {parser.prog} for {shell}, for this shell: source <({origin} {shell})\n"
    if shell == "bash":
        return head + _bash(level)
    return f"#compdef {parser.prog}\n" + head + _zsh(level)


def _read(parser: argparse.ArgumentParser, words: str, text: str = "", *, runners: Collection[str]) -> _Level:
    options: list[_Option] = []
    positionals: list[_Option] = []
    subcommands: dict[str, _Level] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, inner in action.choices.items():
                subcommands[name] = _read(inner, f"{words} {name}", helps.get(name, ""), runners=runners)
            continue
        metavar = None if action.nargs == 0 else str(action.metavar or action.dest)
        choices = tuple(str(each) for each in action.choices or ())
        repeats = isinstance(action, argparse._AppendAction) or action.nargs == "+"
        found = _Option(tuple(action.option_strings), action.help or "", metavar, choices, repeats)
        (options if action.option_strings else positionals).append(found)
    return _Level(words, tuple(options), tuple(positionals), subcommands, text, words in runners)


_BASH = """\
_%(prog)s() {
    local place='%(prog)s' current=${COMP_WORDS[COMP_CWORD]} option='' begins='' first=1 index word
    COMPREPLY=()
    for ((index = 1; index < COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if [[ -n $option ]]; then
            # bash cuts --name=value into three words
            [[ $word == = ]] || option=
            continue
        fi
        case "$place $word" in
%(steps)s
        esac
    done
    [[ $current == = ]] && current=
    if [[ -n $option ]]; then
        compopt +o default 2>/dev/null
        case "$place $option" in
%(values)s
        esac
%(command)s    else
        case "$place $current" in
%(words)s
        esac
    fi
}
complete %(otherwise)s-F _%(prog)s %(prog)s
"""

_BASH_COMMAND = """\
    elif [[ -n $begins ]] && ((begins < COMP_CWORD)); then
        # as the command itself does, if the package bash-completion is there, else files
        compopt -o default 2>/dev/null
        for word in _comp_command_offset _command_offset; do
            declare -F $word >/dev/null && $word "$begins" && break
        done
    elif [[ -n $begins || ( $current != -* && ( %(runners)s ) ) ]]; then
        # sorted, since a command is found once in each folder of PATH that has it
        mapfile -t COMPREPLY < <({ compgen -c -- "$current"%(beside)s; } | sort -u)
"""


def _bash(level: _Level) -> str:
    steps, values, words = [], [], []
    runners = [each for each in level.walk() if each.runs_command]
    # Subcommands first: the words of a command are also the beginning of theirs.
    for each in reversed(list(level.walk())):
        takers = [name for option in each.options if option.metavar is not None for name in option.names]
        if takers:
            steps.append((_patterns(each, takers), "option=$word"))
        for option in each.options:
            if option.choices:
                values.append((_patterns(each, option.names), _offer(option.choices)))
            elif option.metavar == _FOLDER:
                values.append((_patterns(each, option.names), _OFFER_FOLDERS))
        inner = [shlex.quote(below.words) for below in each.subcommands.values()]
        for words_below in inner:
            enter = f"place={words_below}; first=$((index + 1))"
            if each.runs_command:
                # Behind an option it is the name of the user's command.
                enter = f"if ((index == first)); then {enter}; else begins=$index; break; fi"
            steps.append((words_below, enter))
        offered = [*each.subcommands, *(word for positional in each.positionals for word in positional.choices)]
        names = [name for option in each.options for name in option.names]
        words += [(f"{shlex.quote(each.words + ' -')}*", _offer(names))]
        folders = any(positional.metavar == _FOLDER for positional in each.positionals)
        words += [
            (f"{shlex.quote(each.words + ' ')}*", _offer(offered) if offered else _OFFER_FOLDERS * folders or ";")
        ]
        if each.runs_command:
            steps.append((shlex.quote(f"{each.words} --"), "begins=$((index + 1)); break"))
            steps.append((f"{shlex.quote(each.words + ' -')}?*", ";"))
            steps.append((f"{shlex.quote(each.words + ' ')}*", "begins=$index; break"))
        elif any(each.words.startswith(runner.words + " ") for runner in runners):
            # Its words begin as those of the command above it.
            steps.append((f"{shlex.quote(each.words + ' ')}*", ";"))
    return _BASH % {
        "prog": level.words,
        "steps": _cases(steps),
        "values": _cases(values),
        "command": _bash_command(runners) if runners else "",
        "words": _cases(words),
        "otherwise": "-o default " if level.runs_command else "",
    }


def _bash_command(runners: Sequence[_Level]) -> str:
    beside = shlex.quote(" ".join(word for each in runners for word in each.subcommands))
    return _BASH_COMMAND % {
        "runners": " || ".join(f"$place == {shlex.quote(each.words)}" for each in runners),
        "beside": f'; ((COMP_CWORD > first)) || compgen -W {beside} -- "$current"' if beside != "''" else "",
    }


_OFFER_FOLDERS = 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$current")'


def _offer(words: Iterable[str]) -> str:
    return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(words))} -- "$current")'


def _patterns(level: _Level, names: Iterable[str]) -> str:
    return " | ".join(shlex.quote(f"{level.words} {name}") for name in names)


def _cases(cases: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"            {pattern}) {body} ;;".replace(" ; ;;", " ;;") for pattern, body in cases)


_SPECIAL = "\\[]:"
"""What has a meaning in the text of a spec of zsh's ``_arguments``."""


def _zsh(level: _Level) -> str:
    functions = [_zsh_function(each) for each in level.walk()]
    name = f"_{level.words}"
    call = f'if [[ ${{funcstack[1]}} == {name} ]]; then {name} "$@"; else compdef {name} {level.words}; fi\n'
    return "\n".join([*functions, call])


def _zsh_function(level: _Level) -> str:
    specs = [spec for option in level.options for spec in _zsh_option(option)]
    after = ""
    if level.runs_command and level.subcommands:
        words = f"'words:subcommand:({' '.join(level.subcommands)})'"
        both = f"_alternative {words} 'commands:command:_command_names -e'"
        specs.append(shlex.quote(f"(-)1:command:{{ if ((CURRENT == 2)); then {both}; else _command_names -e; fi }}"))
        specs.append(shlex.quote("*::arguments:->rest"))
        cases = "".join(f"        {name}) {_function(each)} ;;\n" for name, each in level.subcommands.items())
        # A subcommand is one only where it is the very first word.
        after = f"    [[ $state == rest ]] && case $typed[2] in\n{cases}        *) _normal ;;\n    esac\n"
    elif level.runs_command:
        specs += [shlex.quote("(-)1:command: _command_names -e"), shlex.quote("*::arguments: _normal")]
    elif level.subcommands:
        listed = " ".join(
            f"{name}\\:{_escape(each.help, _SPECIAL + '() ')}" for name, each in level.subcommands.items()
        )
        specs += [shlex.quote(f"1:command:(({listed}))"), shlex.quote("*::arguments:->rest")]
        cases = "\n".join(f"        {name}) {_function(each)} ;;" for name, each in level.subcommands.items())
        after = f"    [[ $state == rest ]] && case $words[1] in\n{cases}\n    esac\n"
    for number, positional in enumerate(level.positionals, 1):
        offered = f"({' '.join(positional.choices)})" if positional.choices else " "
        offered = "_directories" if positional.metavar == _FOLDER else offered
        place = "*" if positional.repeats else str(number)
        specs.append(shlex.quote(f"{place}:{positional.metavar}:{offered}"))
    lines = " \\\n".join(f"        {spec}" for spec in specs)
    flags = "-C -A '-*' -S" if level.runs_command else "-C"
    head = "    local curcontext=$curcontext state line\n    local -A opt_args\n    local -a typed=($words)\n"
    return f"{_function(level)}() {{\n{head}    _arguments {flags} : \\\n{lines}\n{after}}}\n"


def _function(level: _Level) -> str:
    return "_" + level.words.replace(" ", "_").replace("-", "_")


def _zsh_option(option: _Option) -> Iterator[str]:
    """One spec of ``_arguments`` for each name; a name excludes the other names of the same option."""
    for name in option.names:
        spec = f"*{name}" if option.repeats else f"({' '.join(option.names)}){name}"
        if option.metavar is not None:
            spec += "=" if name.startswith("--") else "+"
        spec += f"[{_escape(option.help, _SPECIAL)}]"
        if option.metavar is not None:
            action = f"({' '.join(option.choices)})" if option.choices else " "
            spec += f":{option.metavar}:{'_directories' if option.metavar == _FOLDER else action}"
        yield shlex.quote(spec)


def _escape(text: str, special: str) -> str:
    return "".join(f"\\{each}" if each in special else each for each in text)
