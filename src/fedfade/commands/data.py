"""`fedfade data`: put a data set in place."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def data(
    name: Annotated[str, typer.Argument(help="cifar10 or digits")],
    data_dir: Annotated[
        Path | None, typer.Option(help="folder data sets are kept in; FEDFADE_DATA if not given")
    ] = None,
) -> None:
    """Use the data set that is there, or download it; then say what it holds."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from fedfade.config import LearningConfig
    from fedfade.errors import not_allowed
    from fedfade.learning import data_folder, load_data
    from fedfade.learning.download import fetch_cifar10

    if name not in ("cifar10", "digits"):
        raise not_allowed("data set", name, "cifar10 or digits (your own .npz need no command)")
    where = "bundled with scikit-learn"
    if name == "cifar10":
        columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("CIFAR-10", total=None, visible=False)

            def tell(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total or None, visible=True)

            where = str(fetch_cifar10(data_folder(data_dir), tell=tell))
    found = load_data(LearningConfig(data=name, data_dir=str(data_dir) if data_dir else None))
    channels, height, width = found.shape
    typer.echo(
        f"{name}: {len(found.train_labels)} training and {len(found.test_labels)} test images of "
        f"{height} x {width} x {channels}, {len(found.classes)} classes, {where}"
    )
