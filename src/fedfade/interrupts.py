"""SIGINT and SIGTERM at a moment that suits."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_held() -> Iterator[Callable[[], bool]]:
    """Hold the first SIGINT or SIGTERM back; yields a function that tells whether one came.

    The block asks at moments where it can stop and save. A second signal acts at once, as if
    nothing were held. Outside the main thread, where signals never arrive, nothing is held.

    >>> with interrupts_held() as asked:
    ...     signal.raise_signal(signal.SIGINT)
    ...     asked()
    True
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            return
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        else:  # the system's own: end
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number, handler in before.items():
        # A signal that was ignored, or whose handler is not Python's, stays so.
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, hold)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
