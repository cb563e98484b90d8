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
    owner = context.command_path if context else "fedfade"
    if isinstance(error, click.NoSuchOption):
        parameters = context.command.get_params(context) if context else ()
        known = [_name(one) for one in parameters if isinstance(one, click.Option)]
        return unknown(error.option_name, "option", owner, known)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        record = error.param.get_help_record(context) if context else None
        # Of an argument, whose help begins with its name, and of an option alike.
        purpose = re.sub(r"\s*\[required\]", "", record[1]) if record else ""
        return UserError(f"{owner} needs {_name(error.param)}{': ' if purpose else ''}{purpose}.")
    if isinstance(error, click.BadParameter) and error.param is not None:
        value, _, reason = error.message.partition(" is not ")
        allowed = _allowed(error.param.type)
        if not reason or allowed is None:
            return UserError(f"{_name(error.param)} is not allowed: {error.message.rstrip('.')}.")
        shown = value if len(value) <= 80 else value[:77] + "..."
        return UserError(f"{_name(error.param)} = {shown} is not allowed: it must be {allowed}.")
    command = re.match(r"No such command '(.*?)'", error.message, re.DOTALL)
    if command and context and isinstance(context.command, click.Group):
        return unknown(command[1], "command", owner, context.command.list_commands(context))
    words = error.message.rstrip(". ")
    hint = f": {owner} --help shows what there is" if context else ""
    return UserError(f"{words[:1].lower()}{words[1:]}{hint}.")


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
