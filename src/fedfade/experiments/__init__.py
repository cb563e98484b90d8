"""Whole experiments: run folders, the comparison of policies, figures and the report."""

from fedfade.experiments.comparison import Comparison, compare_many
from fedfade.experiments.metrics import Row, read_rows, series, summarise
from fedfade.experiments.report import write_report
from fedfade.experiments.run_folder import RunFolder, open_finished
from fedfade.experiments.uploads import Uplink

__all__ = [
    "Comparison",
    "Row",
    "RunFolder",
    "Uplink",
    "compare_many",
    "open_finished",
    "read_rows",
    "series",
    "summarise",
    "write_report",
]
