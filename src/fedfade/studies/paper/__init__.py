"""Every figure of the paper and its claims, part by part; `fedfade reproduce` puts them together.

Each part computes what is missing (trainings and comparisons in run folders that continue where
they stopped), boils it down to small CSV files, and draws figures, facts (JSON) and a page of
tables (Markdown) from those alone.
"""

from fedfade.studies.paper.setting import (
    SCALES,
    Asked,
    Grid,
    Search,
    Setting,
    WorkDone,
    checked_setting,
)
