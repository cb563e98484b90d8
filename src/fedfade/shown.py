"""Names and texts that may come from files of strangers, made harmless for where they are shown."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the start of one


def plain(text: str, keep: str = "\n") -> str:
    """For a terminal: control characters, which could steer it, are spelled out.

    >>> plain("radio.\\x1b[31m\\n")
    'radio.\\\\x1b[31m\\n'
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def drawn(text: str) -> str:
    """For Matplotlib, which takes dollar signs for formulas and `_name` for a label to leave out.

    >>> drawn("_$5"), drawn("random")
    (' _\\\\$5', 'random')
    """
    return (" " if text.startswith("_") else "") + plain(text, keep="").replace("$", r"\$")


def cell(value: object) -> object:
    """For CSV: text that a spreadsheet would compute is quoted.

    >>> cell("=1+1"), cell("-0.5"), cell(-0.5), cell("random")
    ("'=1+1", '-0.5', -0.5, 'random')
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def from_cell(text: str) -> str:
    """What `cell` was given.

    >>> from_cell("'=1+1"), from_cell("'tis")
    ('=1+1', "'tis")
    """
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA) else text


def marked(text: str) -> str:
    """For Markdown: no raw HTML.

    >>> marked("<b>bold</b>")
    '&lt;b>bold&lt;/b>'
    """
    return text.replace("<", "&lt;")
