"""Whole experiments: run folders, the comparison of policies, figures and the report."""

from fedfade.experiments.comparison import (
    QMIX,
    Comparison,
    compared_names,
    compared_policy,
    stored_rows,
)
from fedfade.experiments.metrics import Row, read_rows, series, summarise
from fedfade.experiments.report import write_report
from fedfade.experiments.run_folder import RunFolder, open_finished
from fedfade.experiments.side_by_side import SideBySide, batches, compare_many
from fedfade.experiments.uploads import Uplink, ages_after
