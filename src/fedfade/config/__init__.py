"""One typed tree for everything a run depends on.

The tree (`tree.py`) has six branches: radio, cell, learning, allocation, qmix, run. Presets are
YAML files in `fedfade/presets` that name only what differs from its defaults; `--set
radio.clusters=28` overrides on top (`reading.py`). A run folder keeps the whole tree, a comment
for each field (`writing.py`).
"""

from fedfade.config.reading import changed as changed
from fedfade.config.reading import config_from_tree as config_from_tree
from fedfade.config.reading import load_config as load_config
from fedfade.config.reading import parse_yaml as parse_yaml
from fedfade.config.reading import preset_names as preset_names
from fedfade.config.reading import preset_summary as preset_summary
from fedfade.config.tree import SILENT_DBM as SILENT_DBM
from fedfade.config.tree import CellConfig as CellConfig
from fedfade.config.tree import Config as Config
from fedfade.config.tree import LearningConfig as LearningConfig
from fedfade.config.tree import Precision as Precision
from fedfade.config.tree import QmixConfig as QmixConfig
from fedfade.config.tree import RadioConfig as RadioConfig
from fedfade.config.tree import RewardConfig as RewardConfig
from fedfade.config.writing import differences as differences
from fedfade.config.writing import render_config as render_config
