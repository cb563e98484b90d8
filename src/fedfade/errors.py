"""The one kind of error a user ever sees."""

from __future__ import annotations


class UserError(Exception):
    """Something the user typed or handed over is wrong.

    The message is one sentence that names the field, the value and what is allowed; the
    command line prints it and ends with exit code 2. Names and values may come from files of
    strangers, so control characters, which could end a line or steer a terminal, are spelled out.

    >>> str(UserError("radio.\\x1b[31m is not a known field."))
    'radio.\\\\x1b[31m is not a known field.'
    """

    def __init__(self, sentence: str) -> None:
        super().__init__("".join(map(_printable, sentence)))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def not_allowed(field: str, value: object, allowed: str) -> UserError:
    """The standard sentence.

    >>> str(not_allowed("radio.clusters", 1, "a whole number of at least 2"))
    'radio.clusters = 1 is not allowed: it must be a whole number of at least 2.'
    """
    shown = repr(value) if isinstance(value, str) else str(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return UserError(f"{field} = {shown} is not allowed: it must be {allowed}.")
