"""Coverage-guided fuzzing of every loader; needs fedfade[fuzz].

    python -m tests.reliability.fuzz --seconds 60              # each loader so long
    python -m tests.reliability.fuzz --seconds 600 preset sweep

Whatever ends in anything but a result or a `UserError` is written to tests/reliability/cases and
stays there as a test when it is repaired.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = Path(__file__).parent / "cases"


def one(name: str, arguments: list[str]) -> None:
    """Fuzz one loader in this process; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(
        include=["fedfade", "yaml", "zipfile", "tarfile", "csv", "json", "numpy.lib.format"]
    ):
        from fedfade.errors import UserError
        from tests.reliability.loaders import load, one_sentence
    folder = Path(tempfile.mkdtemp(prefix="fedfade-fuzz-"))

    def test(content: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            load(name, content, folder)
        except UserError as error:
            one_sentence(error)

    atheris.Setup([sys.argv[0], *arguments], test)
    atheris.Fuzz()


def session(name: str, seconds: int) -> tuple[int, int, list[Path]]:
    """Fuzz one loader in a process of its own: inputs tried, branches seen, findings."""
    from tests.reliability.loaders import LOADERS

    with tempfile.TemporaryDirectory(prefix="fedfade-corpus-") as place:
        corpus = Path(place)
        for number, content in enumerate(LOADERS[name].good):
            (corpus / f"good{number}").write_bytes(content)
        (CASES / name).mkdir(parents=True, exist_ok=True)
        known = set((CASES / name).iterdir())
        for case in known:
            (corpus / case.name).write_bytes(case.read_bytes())
        words = [
            f"-max_total_time={seconds}",
            "-rss_limit_mb=4096",
            "-timeout=120",
            "-max_len=20000",
        ]
        words += [f"-artifact_prefix={CASES / name}/", "-print_final_stats=1", str(corpus)]
        command = [sys.executable, "-m", "tests.reliability.fuzz", "--one", name, *words]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        text = answer.stderr + answer.stdout
        tried = re.findall(r"number_of_executed_units: (\d+)", text) or re.findall(r"#(\d+)", text)
        seen = re.findall(r"cov: (\d+)", text)
        found = sorted(set((CASES / name).iterdir()) - known)
        if answer.returncode and not found:
            raise RuntimeError(text[-3000:])
        if found:
            sys.stderr.write(text[-3000:])
        elif not known:
            (CASES / name).rmdir()
    return int(tried[-1]) if tried else 0, int(seen[-1]) if seen else 0, found


def main() -> None:
    """From the command line."""
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3:])
        return
    from tests.reliability.loaders import LOADERS

    parser = argparse.ArgumentParser(description="Fuzz the loaders of fedfade.")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("loaders", nargs="*", choices=[[], *LOADERS])
    asked = parser.parse_args()
    total = 0
    bad: list[Path] = []
    for name in asked.loaders or LOADERS:
        start = time.monotonic()
        tried, seen, found = session(name, asked.seconds)
        total, bad = total + tried, bad + found
        took = time.monotonic() - start
        sys.stdout.write(
            f"{name}: {tried} inputs in {took:.0f} s, {seen} edges, {len(found)} bad\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"{total} inputs, {len(bad)} bad\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
