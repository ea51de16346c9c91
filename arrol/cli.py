"""The ``arrol`` command: it finds its subcommands by the entry points ``arrol.commands``.

The core imports neither the simulator nor an adapter; each brings its own commands.
"""

from __future__ import annotations

import contextlib
import io
import sys
from importlib.metadata import entry_points, version

import click

from arrol.errors import ArrolError

CLOSED = 141  #: exit code where the reader of the output has gone, as shells give it


class _Commands(click.Group):
    """A group whose members are loaded when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(entry.name for entry in entry_points(group="arrol.commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for entry in entry_points(group="arrol.commands", name=cmd_name):
            command: click.Command = entry.load()
            return command
        return None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("arrol"), prog_name="arrol")
def arrol() -> None:
    """Prune RL rollouts while they are generated, and see beforehand what it would save."""


def main() -> None:
    """Run the command; a user's mistake is one sentence on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without κ shows a question mark
            stream.reconfigure(errors="replace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _complain("arrol", f"the output can't be written: {error.strerror}.")
    if code in (CLOSED, 2):
        # What is still buffered can't go anywhere: don't let the interpreter try once more.
        sys.stdout = None
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run ``arrol`` with these arguments and return its exit code."""
    command = [word for word in arguments[:1] if not word.startswith("-")]
    name = " ".join(["arrol", *command])
    try:
        code = arrol.main(arguments, prog_name="arrol", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.ClickException as error:
        return _complain(name, error.format_message())
    except ArrolError as error:
        return _complain(name, str(error))
    except (click.Abort, KeyboardInterrupt):
        print(f"{name}: interrupted.", file=sys.stderr)
        return 130
    except SystemExit:  # how click and rich report a reader (head, less) that has gone
        return CLOSED
    except OSError as error:
        return _complain(name, f"the output can't be written: {error.strerror or error}.")
    return code if isinstance(code, int) else 0


def _complain(name: str, message: str) -> int:
    with contextlib.suppress(OSError):  # the exit code still tells
        print(f"{name}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return 2
