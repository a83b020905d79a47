"""The `outrider` command: finds the subcommand, and turns every failure into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence

import click

from outrider import __version__
from outrider.cli.exit_codes import CLOSED_PIPE, INTERNAL_ERROR, INTERRUPTED, OUTPUT_ERROR, USER_ERROR
from outrider.errors import OutriderError, nearest, nearest_or_all

# Each module is imported when its command runs or its help is shown; none of them imports torch at its top.
_COMMANDS = {
    "generate": "outrider.cli.generate",
    "chat": "outrider.cli.chat",
    "inspect": "outrider.cli.inspect",
    "demo": "outrider.cli.demo",
    "doctor": "outrider.cli.doctor",
    "train": "outrider.cli.train",
}
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LazyCommands(click.Group):
    """The subcommands by name; an unknown one is answered with the nearest known one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name]), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            hint = nearest_or_all(args[0], _COMMANDS)
            raise click.UsageError(f"unknown command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


class OncePerMessage:
    """Lets each message through once: a target and its draft may have the same to say."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        new = message not in self._seen
        self._seen.add(message)
        return new


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="outrider %(version)s")
def outrider() -> None:
    """Exact speculative decoding: language models write faster, and write the same text."""


def main() -> int:
    """The console script: prepares the process, runs the command, returns its exit code."""
    # torch's workers spin at their barriers; on a machine that is busy with other work that is ruinous.
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    handler.addFilter(OncePerMessage())
    logging.getLogger("outrider").addHandler(handler)
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    code = run(sys.argv[1:])
    if code == OUTPUT_ERROR:
        sys.stdout = io.StringIO()  # at exit Python would try once more, and complain
    return code


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code: 0, or one of `exit_codes`."""
    try:
        code = outrider.main(args=list(arguments) or ["--help"], prog_name="outrider", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        return _failed(_usage_message(error), USER_ERROR)
    except OutriderError as error:
        return _failed(str(error), USER_ERROR)
    except SystemExit:  # how click and rich answer a closed pipe
        return CLOSED_PIPE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            where = "the output" if error.filename is None else repr(error.filename)
            return _failed(f"{where} cannot be written ({error.strerror}): make room for it", OUTPUT_ERROR)
        if os.environ.get("OUTRIDER_TRACEBACK"):
            raise
        reason = f"{type(error).__name__}: {error}"
        return _failed(f"unexpected {reason} (OUTRIDER_TRACEBACK=1 shows where)", INTERNAL_ERROR)
    return int(code or 0)


def _open_closed_streams() -> None:
    """A standard stream that the caller closed reads as empty, and takes what is written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (open to the end)


def _failed(message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # nobody can be told: the code must say it
        click.echo(f"error: {' '.join(message.split())}", err=True)
    return code


def _usage_message(error: click.ClickException) -> str:
    """Click's message in our form: lower case, with the nearest option where one was misspelt."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption):
        options = [name for param in context.command.params for name in param.opts] if context else []
        known = [name for name in options if name.startswith("-")]
        return f"unknown option {error.option_name!r}{nearest(error.option_name, known)}"
    message = error.format_message()
    return message[:1].lower() + message[1:]
