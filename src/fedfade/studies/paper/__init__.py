"""Every figure of the paper, and a few more, from one command: `fedfade reproduce`.

Each part computes what is missing (trainings and comparisons in run folders that continue where
they stopped), boils it down to small CSV files, and draws figures, facts (JSON) and a page of
tables (Markdown) from those alone.
"""

from fedfade.studies.paper.reproduction import ALL, PARTS, Reproduce, reproduce
from fedfade.studies.paper.setting import SCALES, Grid, Search, Setting, Work, checked_setting
