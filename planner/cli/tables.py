"""`planner tables`: measured tables that others publish, as tables of `--table`."""

from __future__ import annotations

import click

from planner.cli.screen import write, write_output
from planner.cli.showing import check_figures_output

FORMS = ("aiconfigurator", "nccl-tests", "neusight", "deepbench")


@click.group("tables")
def tables_command() -> None:
    """Import measured tables, for --table."""


@tables_command.command("import")
@click.argument("form", type=click.Choice(FORMS))
@click.argument("path")
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="The table, .json; '-' for stdout."
)
@click.option(
    "--gpu",
    default="",
    metavar="TEXT",
    help="Which GPU, where the file has several: part of its name.",
)
def import_command(form: str, path: str, output: str, gpu: str) -> None:
    """Write a table of --table from measurements in a public form.

    PATH is a file; of aiconfigurator also the folder of one system.
    """
    from planner.output import STDOUT
    from planner.tables.imports import import_table

    check_figures_output(output, [path])
    table = import_table(form, path, gpu=gpu)
    write_output(output, table.text)
    if output == STDOUT:
        return
    write(
        f"{table.num_times} measured times and {table.num_collectives} collectives of "
        f"{table.device} written to {output}"
    )
    for reason, count in table.left_out.items():
        write(f"left out: {count} of {reason}")
