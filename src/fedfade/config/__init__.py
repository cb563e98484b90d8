"""One typed tree for everything a run depends on.

The tree (`tree.py`) has seven branches: radio, cell, learning, cost, allocation, qmix, run. Presets
are YAML files in `fedfade/presets` that name only what differs from its defaults; `--set
radio.clusters=28` overrides on top. A run folder keeps the whole tree, a comment for each field
(`files.py`).
"""

from fedfade.config.files import (
    BEFORE,
    RENAMED,
    changed,
    config_from_tree,
    differences,
    load_config,
    parse_yaml,
    preset_names,
    preset_summary,
    render_config,
)
from fedfade.config.idle import idle
from fedfade.config.inputs import check_same_inputs, content_digest, content_of, inputs_of
from fedfade.config.tree import (
    FASTEST,
    SILENT_DBM,
    SLOWEST,
    CappedConfig,
    CellConfig,
    Config,
    CostConfig,
    LearningConfig,
    MappoConfig,
    NrConfig,
    Precision,
    QmixConfig,
    RadioConfig,
    RewardConfig,
)
