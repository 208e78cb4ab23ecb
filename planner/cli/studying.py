"""`planner study`: many questions of one file, answered by workers that share a storage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from costmodels.errors import InputError
from planner.cli.completion import complete
from planner.cli.failures import INFEASIBLE, UNSOLVED, UNUSABLE, Failure
from planner.cli.options import WholeNumber
from planner.cli.screen import progress, show, write, write_output
from planner.cli.showing import STDOUT, Shown, output_option, showing_options
from planner.request.inputs.description import at_least

if TYPE_CHECKING:
    from planner.study.run import Study
    from planner.study.sweep import Sweep

_SUFFIXES = (".json", ".html", ".htm")
_refuse_jobs = at_least(1, "the number of workers (--jobs)", "raise it")


@click.command("study")
@click.argument("sweep_file", metavar="STUDY", shell_complete=complete(None, (".toml",)))
@click.option(
    "--storage",
    metavar="URL|FILE",
    help="Where answers are kept and workers meet: the URL of a database, or a journal file; by "
    "default sqlite:///NAME.db, after the study file.",
    shell_complete=complete(None, (".db", ".journal", ".log")),
)
@click.option(
    "--jobs",
    type=WholeNumber(),
    metavar="N",
    default=1,
    show_default=True,
    help="Workers on this machine; others may work on the same storage.",
)
@click.option(
    "--csv",
    "table",
    metavar="FILE",
    help="Write the table as comma-separated values.",
    shell_complete=complete(None, (".csv",)),
)
@click.option("--plans", metavar="FOLDER", help="Write each plan there, as NUMBER.json.")
@output_option("the study with its plans as JSON, or as a page if FILE ends in .html")
@showing_options("as_json", "quiet")
def study_command(
    sweep_file: str,
    storage: str | None,
    jobs: int,
    table: str | None,
    plans: str | None,
    output: str | None,
    shown: Shown,
) -> None:
    """Answer all questions of a study file.

    STUDY is a TOML file with grids of what 'planner optimize' takes. What is answered already, here
    or by workers elsewhere, is not asked again.
    """
    shown.check(output)
    _refuse_jobs(jobs)
    from planner.study.run import run_study
    from planner.study.sweep import read_sweep

    sweep = read_sweep(sweep_file)
    if storage is not None and not storage.strip():
        rule = "be a database URL or a journal file"
        raise InputError.rule("--storage", rule, repr(storage), "name one")
    url = storage or f"sqlite:///{Path(sweep_file).stem}.db"
    _check_study(sweep, [sweep_file, *_file_of(url)], table, plans, output)
    with progress(f"study {sweep.name}", quiet=shown.quiet, hint=" (Ctrl-C stops)") as tell:
        study = run_study(sweep, url, jobs=jobs, tell=tell)
    _write(study, table, plans, output, shown)
    if study.interrupted:
        raise KeyboardInterrupt
    _end_study(study)


def _file_of(url: str) -> Iterator[str]:
    """The file of a storage, where it is one."""
    path = url.partition("?")[0]
    if "://" not in path:
        yield path
    elif path.startswith("sqlite"):
        yield path.partition(":///")[2]


def _check_study(
    sweep: Sweep, inputs: list[str], table: str | None, plans: str | None, output: str | None
) -> None:
    """Refuse outputs that cannot be written before anybody waits."""
    from planner.output import Output, check_outputs

    outputs = []
    if output is not None:
        outputs.append(Output(option="-o", path=output, suffixes=_SUFFIXES, streams=True))
    if table is not None:
        outputs.append(Output(option="--csv", path=table, suffixes=(".csv",)))
    if plans is not None:
        try:
            os.makedirs(plans, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            message = f"the folder '{plans}' of --plans cannot be made ({reason}); choose another"
            raise Failure(UNUSABLE, message) from None
        outputs += [
            Output(option="--plans", path=path, suffixes=(".json",))
            for path in _plan_files(plans, len(sweep.questions))
        ]
    named = [str(value) for one in sweep.questions for value in one.values.values()]
    check_outputs(outputs, [*inputs, *dict.fromkeys(named)])


def _plan_files(folder: str, count: int) -> list[str]:
    return [os.path.join(folder, f"{number}.json") for number in range(1, count + 1)]


def _write(
    study: Study, table: str | None, plans: str | None, output: str | None, shown: Shown
) -> None:
    """Write a study where asked for, and show it."""
    from planner.report.study import show_study, study_csv, study_facts, study_page, study_title

    written = []
    if plans is not None:
        paths = _plan_files(plans, len(study.rows))
        for path, row in zip(paths, study.rows, strict=True):
            if row.answer is not None and row.answer.text:
                write_output(path, row.answer.text)
        written.append(f"plans written to {plans}")
    if table is not None:
        write_output(table, study_csv(study))
        written.append(f"table written to {table}")
    if output is not None:
        page = output.endswith((".html", ".htm"))
        text = study_page(study) if page else f"{json.dumps(study_facts(study), indent=1)}\n"
        write_output(output, text)
        written.append(f"study written to {output}")
        if output == STDOUT:
            return
    if shown.as_json:
        write(json.dumps(study_facts(study), indent=1))
    elif shown.quiet:
        with_plan = sum(row.answer is not None and bool(row.answer.text) for row in study.rows)
        write(f"{study_title(study)}, {with_plan:,} with a plan")
    else:
        show(lambda console: show_study(study, console))
        if written:
            write("\n" + "\n".join(written))


def _end_study(study: Study) -> None:
    """A status of its own where no question has a plan."""
    if study.unanswered:
        many = "1 question is" if study.unanswered == 1 else f"{study.unanswered:,} questions are"
        raise Failure(
            UNSOLVED,
            f"{many} not answered, since each worker that began one was killed; "
            "free some memory, or use fewer --jobs, and run it again",
        )
    found = {row.answer.status for row in study.rows if row.answer is not None}
    if any(row.answer is not None and row.answer.text for row in study.rows):
        return
    if found == {"infeasible"}:
        raise Failure(INFEASIBLE, "no plan fits in memory for any question of the study")
    if found == {"refused"}:
        raise Failure(UNUSABLE, "no question of the study can be asked; correct its file")
    raise Failure(UNSOLVED, "no plan was found for any question of the study")
