"""A reproduction as a point of a sweep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedfade.config import Config
from fedfade.studies.paper.parts import PARTS, centre_lines, reproduce
from fedfade.studies.paper.setting import checked_setting


class Reproduce:
    """`fedfade reproduce all` on the paper's grids: one line per policy, in the training cell."""

    marker = "claims.md"  # written last

    def run(self, config: Config, folder: Path, tell: Callable[[int, int], None]) -> None:
        """All parts in order."""
        setting = checked_setting(folder, config, "paper")
        reproduce(setting, list(PARTS), done=lambda parts: tell(parts, len(PARTS)))

    def lines(self, config: Config, folder: Path) -> list[dict[str, Any]] | None:
        """Final accuracy and what the uplink did where the agents were trained."""
        return centre_lines(config, folder) if (folder / self.marker).is_file() else None
