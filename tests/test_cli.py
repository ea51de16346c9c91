"""The ``arrol`` command: exit codes and one-sentence errors."""

import os
import subprocess
import sys

import click
import pytest

from arrol import cli
from arrol.errors import ArrolError


def arrol(*arguments, environment=None):
    return subprocess.run(
        [sys.executable, "-P", "-c", "from arrol.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def test_help_lists_the_commands():
    result = arrol("--help")
    assert result.returncode == 0
    assert "sim" in result.stdout
    assert "replay" in result.stdout


def test_version():
    assert arrol("--version").stdout.startswith("arrol, version 0.")


def test_unknown_command_is_one_sentence_and_exit_code_2():
    result = arrol("simulate")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "simulate" in result.stderr


def test_no_command_shows_help():
    result = arrol()
    assert result.returncode == 2
    assert "sim" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ArrolError("x is 3;\n allowed is 2."), 2, "arrol sim: x is 3; allowed is 2.\n"),
        (click.UsageError("bad flag"), 2, "arrol sim: bad flag\n"),
        (KeyboardInterrupt(), 130, "arrol sim: interrupted.\n"),
    ],
)
def test_errors_become_one_line_and_a_code(error, code, text, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cli.arrol, "main", fail)
    assert cli.run(["sim"]) == code
    assert capsys.readouterr().err == text


def test_a_bug_keeps_its_traceback(monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(cli.arrol, "main", fail)
    with pytest.raises(ZeroDivisionError):
        cli.run(["sim"])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_will_do(encoding):
    result = arrol("sim", "--help", environment={"PYTHONIOENCODING": encoding})
    assert result.returncode == 0
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", ["sim --help", "--version", "sim --keep-ratio 7"])
def test_full_disk_is_no_traceback_and_exit_code_2(arguments):
    command = f"{sys.executable} -P -c 'from arrol.cli import main; main()' {arguments}"
    for full in (f"{command} > /dev/full", f"{command} > /dev/full 2> /dev/full"):
        result = subprocess.run(full, shell=True, capture_output=True, text=True)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


def test_exit_code_of_a_command_comes_through(monkeypatch):
    @click.command()
    @click.pass_context
    def failing(context):
        context.exit(1)

    monkeypatch.setattr(cli.arrol, "get_command", lambda *_: failing)
    assert cli.run(["failing"]) == 1


def test_closed_pipe_is_no_traceback():
    result = subprocess.run(
        f"{sys.executable} -P -c 'from arrol.cli import main; main()' sim --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in result.stderr
