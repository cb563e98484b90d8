"""The commands of `fedfade COMMAND`, each of which lives in `fedfade.commands`."""

import sys
from typing import Annotated, Any, NoReturn

import click
import typer.core
import typer.main
from rich.table import Table

from fedfade import __version__
from fedfade.bench import command as bench
from fedfade.commands import channel, options
from fedfade.commands.compare import compare, replay, report, verify
from fedfade.commands.learning import bound, data, learn, partition
from fedfade.commands.mistakes import mistake
from fedfade.commands.sweep import sweep
from fedfade.commands.train import export, train
from fedfade.config import load_config, preset_names, preset_summary, render_config
from fedfade.errors import UserError
from fedfade.studies.commands import ladder, levers, reproduce


class _Argument(typer.core.TyperArgument):
    """Keeps its help, which click 8.5 takes from Typer's own."""

    def __init__(self, *, help: str | None = None, **others: Any) -> None:
        super().__init__(**others)
        self._purpose = help or ""

    def get_help_record(self, ctx: Any) -> tuple[str, str]:
        name, rest = super().get_help_record(ctx) or ("", "")
        return name, f"{self._purpose}  {rest}".strip()


typer.main.TyperArgument = _Argument  # type: ignore[misc]
typer.core.HAS_RICH = False  # help is plain text, in which Typer would escape brackets for Rich

app = typer.Typer(
    name="fedfade",
    help="Federated learning over a fading uplink, slot by slot: who should send where?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)

app.command(short_help="Compare policies: who wins, and why.")(compare)
app.command(short_help="Watch one round of a comparison, slot by slot.")(replay)
app.command(short_help="One page of several runs, or of an old one.")(report)
app.command(short_help="Train QMIX agents on the uplink.")(train)
app.command(short_help="Write trained agents as ONNX, one per client.")(export)
app.command(short_help="What is a bit of channel knowledge worth?")(ladder)
app.command(short_help="Allocation, compression or aggregation?")(levers)
app.command(short_help="Run many configurations.")(sweep)
app.command(short_help="The paper's figures and claims, from one command.")(reproduce)
app.command(short_help="Check a finished run: same numbers again?")(verify)
app.add_typer(channel.app, name="channel", short_help="Draw, show and import channel gains.")
app.command(short_help="Train with perfect uploads.")(learn)
app.command(short_help="Deal samples to clients, and draw it.")(partition)
app.command(short_help="Measure the convergence bound along a run.")(bound)
app.command(short_help="Get a data set ready.")(data)
app.add_typer(bench.app, name="bench", short_help="Measure speed on this machine.")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="print the version and stop")] = False,
) -> None:
    """Federated learning over a fading uplink, slot by slot."""
    if version:
        options.PlainConsole().print(f"fedfade {__version__}", highlight=False)
        raise typer.Exit()


@app.command(short_help="List the presets.")
def presets() -> None:
    """List the presets shipped with the package."""
    table = Table("preset", "what it is", box=None)
    for name in preset_names():
        table.add_row(name, preset_summary(name))
    options.PlainConsole().print(table)


@app.command(short_help="Print the full configuration.")
def config(preset: options.PresetArgument, overrides: options.SetOption = None) -> None:
    """Print the full resolved configuration, a comment for each field."""
    options.echo(render_config(load_config(preset, overrides or ())).removesuffix("\n"))


def run() -> NoReturn:
    """The command a user typed: errors of the user's end with one sentence and exit code 2."""
    try:
        for word in sys.argv:
            if not word.isascii() and word != word.encode(errors="ignore").decode():
                raise UserError(f"{word!r} is not allowed: names must be UTF-8 text.")
        sys.exit(app(prog_name="fedfade", standalone_mode=False) or 0)
    except UserError as error:
        _end(error)
    except typer.Abort as error:  # Ctrl-C where nothing was begun, or the input ended
        sys.exit(130 if isinstance(error.__cause__, KeyboardInterrupt) else 1)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help; not in click 8.1
            error.show()
            sys.exit(error.exit_code)
        _end(mistake(error))
    except OSError as error:  # a disk or a pipe that gave up where nobody expected it
        place = f"{str(error.filename)!r}: " if error.filename else ""
        _end(UserError(f"{place}{(error.strerror or type(error).__name__).lower()}."))


def _end(error: UserError) -> NoReturn:
    options.say(f"error: {error}", style="bold red")
    sys.exit(2)
