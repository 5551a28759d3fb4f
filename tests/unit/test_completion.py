"""The scripts that complete our commands; tests/integration/test_command_line.py has shells use them."""

from __future__ import annotations

import argparse

import pytest

from byteps_py import completion


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tool")
    made.add_argument("-q", "--quiet", action="store_true", help="say [almost] nothing: really")
    made.add_argument("-o", "--output-folder", metavar="DIR", help="where to write")
    made.add_argument("--mode", choices=("fast", "slow"))
    commands = made.add_subparsers()
    commands.add_parser("run", help="run it (now)").add_argument("what", choices=("all", "one"))
    commands.add_parser("clean-up").add_argument("--count", type=int)
    return made


def lines(text: str, part: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if part in line]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_first_lines_say_how_it_is_used(shell: str, parser: argparse.ArgumentParser) -> None:
    text = completion.script(shell, parser, "tool completion")
    assert f"# Completion of tool for {shell}, for this shell: source <(tool completion {shell})\n" in text
    assert text.startswith("#compdef tool\n") == (shell == "zsh")


def test_bash_knows_options_with_a_value(parser: argparse.ArgumentParser) -> None:
    text = completion.script("bash", parser, "tool completion")
    assert lines(text, "option=$word") == [
        "'tool clean-up --count') option=$word ;;",
        "'tool -o' | 'tool --output-folder' | 'tool --mode') option=$word ;;",
    ]
    assert any("compgen -W 'fast slow'" in each for each in lines(text, "'tool --mode')"))
    assert any("compgen -d" in each for each in lines(text, "'tool -o' | 'tool --output-folder')"))


def test_bash_knows_subcommands(parser: argparse.ArgumentParser) -> None:
    text = completion.script("bash", parser, "tool completion")
    assert "'tool run') place='tool run'; first=$((index + 1)) ;;" in lines(text, "place=")
    assert any("compgen -W 'run clean-up'" in each for each in lines(text, "'tool '*)"))
    assert any("compgen -W 'all one'" in each for each in lines(text, "'tool run '*)"))
    assert any("compgen -W '-h --help --count'" in each for each in lines(text, "'tool clean-up -'*)"))


def test_only_a_command_that_runs_another_falls_back_to_files(parser: argparse.ArgumentParser) -> None:
    assert lines(completion.script("bash", parser, "tool"), "complete -") == ["complete -F _tool tool"]
    text = completion.script("bash", parser, "tool", runs_command=True)
    assert lines(text, "complete -") == ["complete -o default -F _tool tool"]
    assert "'tool --') begins=$((index + 1)); break ;;" in lines(text, "begins=")


def test_zsh_gets_descriptions_and_values(parser: argparse.ArgumentParser) -> None:
    text = completion.script("zsh", parser, "tool completion")
    for each in (
        r"'(-q --quiet)--quiet[say \[almost\] nothing\: really]'",
        "'(-o --output-folder)-o+[where to write]:DIR:_directories'",
        "'(--mode)--mode=[]:mode:(fast slow)'",
        r"'1:command:((run\:run\ it\ \(now\) clean-up\:))'",
        "clean-up) _tool_clean_up ;;",
        "'1:what:(all one)'",
        "'(--count)--count=[]:count: '",
    ):
        assert each in text, each


def test_zsh_leaves_the_command_to_its_own_completion(parser: argparse.ArgumentParser) -> None:
    text = completion.script("zsh", argparse.ArgumentParser(prog="tool"), "tool completion", runs_command=True)
    assert "'(-)1:command: _command_names -e'" in text
    assert "'*::arguments: _normal'" in text


@pytest.fixture
def outer() -> argparse.ArgumentParser:
    """``tool try`` runs a command of the user's, and ``tool try again`` does not."""
    made = argparse.ArgumentParser(prog="tool")
    inner = made.add_subparsers().add_parser("try")
    inner.add_argument("--with", action="append", metavar="WHAT")
    inner.add_subparsers().add_parser("again").add_argument("folders", metavar="DIR", nargs="+")
    return made


def test_bash_knows_subcommands_that_run_a_command(outer: argparse.ArgumentParser) -> None:
    text = completion.script("bash", outer, "tool completion", runners=("tool try",))
    assert lines(text, "begins=$") == [
        "'tool try again') if ((index == first)); then place='tool try again'; first=$((index + 1)); "
        "else begins=$index; break; fi ;;",
        "'tool try --') begins=$((index + 1)); break ;;",
        "'tool try '*) begins=$index; break ;;",
    ]
    assert text.index("'tool try again '*) ;;") < text.index("'tool try '*) begins")
    assert "( $place == 'tool try' )" in text
    assert "|| compgen -W again --" in text
    assert any("compgen -d" in each for each in lines(text, "'tool try again '*)"))
    assert lines(text, "complete -") == ["complete -F _tool tool"]


def test_zsh_knows_subcommands_that_run_a_command(outer: argparse.ArgumentParser) -> None:
    text = completion.script("zsh", outer, "tool completion", runners=("tool try",))
    assert "'*--with=[]:WHAT: '" in text
    assert "'*:DIR:_directories'" in text
    assert "words:subcommand:(again)" in text
    assert "        again) _tool_try_again ;;\n        *) _normal ;;\n" in text
    assert "case $typed[2] in" in text
    assert "if ((CURRENT == 2)); then _alternative" in text
