"""A mistake in an option is told like any other: in one sentence, not with a page of usage."""

import re
from typing import Any

import click

from fedfade.errors import UserError, unknown


def mistake(error: click.ClickException) -> UserError:
    """The sentence for what click refuses: what was typed, and what is allowed.

    >>> from click import Context, IntRange, Option
    >>> drops = Option(["--drops"], type=IntRange(1, 200))
    >>> refused = click.BadParameter("0 is not in the range 1<=x<=200.", param=drops)
    >>> print(mistake(refused))
    --drops = 0 is not allowed: it must be a whole number from 1 to 200.
    >>> print(mistake(click.BadOptionUsage("--out", "Option '--out' requires an argument.")))
    option '--out' requires an argument.
    """
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error.option_name, context)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return _missing(error.param, context)
    if isinstance(error, click.BadParameter) and error.param is not None:
        return _bad_value(error.message, error.param)
    command = re.match(r"No such command '(.*?)'", error.message, re.DOTALL)
    if command and context and isinstance(context.command, click.Group):
        known = context.command.list_commands(context)
        return unknown(command[1], "command", context.command_path, known)
    words = error.message.rstrip(". ")
    hint = f": {context.command_path} --help shows what there is" if context else ""
    return UserError(f"{words[:1].lower()}{words[1:]}{hint}.")


def _unknown_option(name: str, context: click.Context | None) -> UserError:
    known = [
        max(parameter.opts, key=len)
        for parameter in (context.command.get_params(context) if context else ())
        if isinstance(parameter, click.Option)
    ]
    return unknown(name, "option", context.command_path if context else "fedfade", known)


def _missing(parameter: click.Parameter, context: click.Context | None) -> UserError:
    owner = context.command_path if context else "fedfade"
    record = parameter.get_help_record(context) if context else None
    # Of an argument, whose help begins with its name, and of an option alike.
    purpose = re.sub(r"\s*\[required\]", "", record[1]) if record else ""
    return UserError(f"{owner} needs {_name(parameter)}{': ' if purpose else ''}{purpose}.")


def _bad_value(message: str, parameter: click.Parameter) -> UserError:
    value, _, reason = message.partition(" is not ")
    allowed = _allowed(parameter.type)
    if not reason or allowed is None:
        return UserError(f"{_name(parameter)} is not allowed: {message.rstrip('.')}.")
    shown = value if len(value) <= 80 else value[:77] + "..."
    return UserError(f"{_name(parameter)} = {shown} is not allowed: it must be {allowed}.")


def _name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name


def _allowed(kind: click.ParamType[Any]) -> str | None:
    """What a type takes, where it is a number."""
    if isinstance(kind, click.IntRange | type(click.INT)):
        noun = "a whole number"
    elif isinstance(kind, click.FloatRange | type(click.FLOAT)):
        noun = "a number"
    else:
        return None
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None:
        return f"{noun} from {low} to {high}"
    if low is not None:
        return f"{noun} of at least {low}"
    return noun if high is None else f"{noun} of at most {high}"
