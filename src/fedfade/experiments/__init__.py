"""Whole experiments: run folders, the comparison of policies, figures and the report."""

from fedfade.experiments.comparison import Comparison, Uplink
from fedfade.experiments.metrics import Row, read_rows, series, summarise
from fedfade.experiments.report import write_report
from fedfade.experiments.run_folder import RunFolder, open_finished

__all__ = [
    "Comparison",
    "Row",
    "RunFolder",
    "Uplink",
    "open_finished",
    "read_rows",
    "series",
    "summarise",
    "write_report",
]
