"""`planner tables`: measured tables that others publish, as tables of `--table`."""

from __future__ import annotations

import click

from planner.cli.screen import write

FORMS = ("aiconfigurator", "nccl-tests", "neusight", "deepbench")


@click.group("tables")
def tables_command() -> None:
    """Import measured tables, for --table."""


@tables_command.command("import")
@click.argument("form", type=click.Choice(FORMS))
@click.argument("path")
@click.option("-o", "--output", required=True, metavar="FILE", help="The table, a .json file.")
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
    from planner.output import Output, check_outputs, write_text
    from planner.tables.imports import import_table

    check_outputs([Output(option="-o", path=output, suffixes=(".json",))], [path])
    table = import_table(form, path, gpu=gpu)
    write_text(output, table.text)
    write(
        f"{table.num_times} measured times and {table.num_collectives} collectives of "
        f"{table.device} written to {output}"
    )
    for reason, count in table.left_out.items():
        write(f"left out: {count} of {reason}")
