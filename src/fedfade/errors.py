"""The one kind of error a user ever sees."""

import difflib
from collections.abc import Iterable

from fedfade.shown import plain


class UserError(Exception):
    """Something the user typed or handed over is wrong.

    The message is one sentence that names the field, the value and what is allowed; the
    command line prints it and ends with exit code 2. Names and values may come from files of
    strangers, so control characters, which could end a line or steer a terminal, are spelled out.

    >>> str(UserError("radio.\\x1b[31m is not a known field."))
    'radio.\\\\x1b[31m is not a known field.'
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(plain(sentence, keep=""))


def not_allowed(field: str, value: object, allowed: str, known: Iterable[str] = ()) -> UserError:
    """The standard sentence; with the nearest of some known names, if one is near.

    >>> str(not_allowed("radio.clusters", 1, "a whole number of at least 2"))
    'radio.clusters = 1 is not allowed: it must be a whole number of at least 2.'
    >>> str(not_allowed("learning.codec", "int9", "one of int8, sign", ["int8", "sign"]))
    "learning.codec = 'int9' is not allowed: did you mean int8? it must be one of int8, sign."
    """
    try:
        shown = repr(value) if isinstance(value, str) else str(value)
    except ValueError:  # Python prints no number of more than 4,300 digits
        shown = "a number of thousands of digits"
    hint = _nearest(value, known) if isinstance(value, str) else ""
    return UserError(f"{field} = {_short(shown)} is not allowed: {hint}it must be {allowed}.")


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _nearest(what: str, known: Iterable[str], quote: str = "") -> str:
    near = difflib.get_close_matches(what.rpartition(".")[2], known, n=1)
    return f"did you mean {quote}{near[0]}{quote}? " if near else ""


def unknown(what: str, kind: str, owner: str, known: Iterable[str], quote: str = "") -> UserError:
    """The sentence about a name nobody knows, with the nearest one that is known.

    >>> str(unknown("--sedes", "option", "fedfade train", ["--seeds", "--out"]))
    '--sedes is not a known option: did you mean --seeds? fedfade train has --seeds, --out.'
    """
    known = list(known)
    hint = _nearest(what, known, quote)
    return UserError(f"{_short(what)} is not a known {kind}: {hint}{owner} has {', '.join(known)}.")


_KNOBS = {
    "train": "--seeds, qmix.parallel_episodes, qmix.batch_size or qmix.replay_size",
    "compare": "run.seeds, the number of policies, or learning.batch_size",
    "learn": "run.seeds or learning.batch_size",
    "bound": "run.seeds or learning.batch_size",
    "ladder": "--seeds or --rounds",
    "reproduce": "run.seeds, qmix.replay_size or learning.batch_size",
    "sweep": "--workers, or in the sweep's fields qmix.replay_size or learning.batch_size",
    "channel": "--drops",
}
_OUT_OF_MEMORY = [
    *("allocate memory", "out of memory", "alloc_failed", "could not create a primitive"),
    *("failed to map segment", "error return without exception set"),  # while importing
]
_SAVING = {"train", "compare", "reproduce", "sweep"}


def out_of_memory(error: BaseException, command: str) -> UserError | None:
    """The sentence for an error that means too little memory, naming what to lower; else None.

    PyTorch has an exception of its own for a GPU's memory and none for the CPU's.

    >>> print(out_of_memory(MemoryError(), "train"))
    this machine has too little memory for fedfade train: lower --seeds, qmix.parallel_episodes, \
qmix.batch_size or qmix.replay_size; its last checkpoint is whole.
    >>> out_of_memory(RuntimeError("shapes differ"), "train") is None
    True
    """
    text = str(error).lower()
    on_gpu = type(error).__name__ == "OutOfMemoryError" or "cuda" in text or "cublas" in text
    if not isinstance(error, MemoryError) and not any(sign in text for sign in _OUT_OF_MEMORY):
        return None
    knobs = _KNOBS.get(command, "the sizes of this configuration")
    kept = "; its last checkpoint is whole" if command in _SAVING else ""
    what = f"{'the GPU' if on_gpu else 'this machine'} has too little memory for fedfade {command}"
    return UserError(f"{what}: lower {knobs}{kept}.")
