"""Where the command line begins: `fedfade COMMAND`. The commands are in `fedfade.app`.

This module itself is imported in an instant: the seconds in which the rest is fall into `main`, so
that an interrupt or too little memory ends there like anywhere else.
"""

import gc
import os
import sys
import warnings
from io import StringIO, TextIOWrapper

from fedfade.errors import out_of_memory


class _Stderr(TextIOWrapper):
    """Standard error without which a run goes on: on a full device nothing more is said."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def main() -> None:
    """Entry point: whatever happens, a user sees one sentence."""
    own = sys.__stderr__
    if own is None:  # closed
        sys.stderr = StringIO()
    elif sys.stderr is own:
        sys.stderr = _Stderr(own.buffer, own.encoding, own.errors, line_buffering=True)
    gc.set_threshold(20_000)  # looking for garbage 30 times as often took a seventh of the start
    os.environ["MPLBACKEND"] = "agg"  # pictures go to files, whatever windows a shell asks for
    if any(option.startswith("error") for option in sys.warnoptions):
        # Warnings of libraries are not the user's to mend; this process and its workers show them.
        warnings.simplefilter("default")
        os.environ["PYTHONWARNINGS"] = "default"
    try:
        from fedfade.app import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except (MemoryError, RuntimeError, ImportError, SystemError) as error:
        sentence = out_of_memory(error, sys.argv[1] if len(sys.argv) > 1 else "")
        if sentence is None:
            raise
        sys.stderr.write(f"error: {sentence}\n")  # by what is there: Rich may not be
        sys.exit(2)
