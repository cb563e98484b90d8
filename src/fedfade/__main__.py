"""`python -m fedfade` is `fedfade`."""

from fedfade.cli import main

main()
