"""Start a script on several ranks, each of which finds its plan in the environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from costmodels.errors import InputError, one_line, plain
from planner.plan import Plan
from planner.plan.edited import check_unedited
from planner.torch.trace import require_torch

# The environment variable that has the path of the plan.
PLAN_VARIABLE = "PLANNER_PLAN"
# That of torchrun's --nnodes.
_HOSTS = "PET_NNODES"


def launch(plan_file: str, processes: int, script: Sequence[str]) -> int:
    """Run a script under torchrun; its exit status.

    Parameters
    ----------
    plan_file
        The plan.
    processes
        Ranks on this host. [items]
    script
        A file in Python, and its arguments.

    Raises
    ------
    InputError
        When the plan is for another number of ranks, or there is no such script.
    """
    if processes < 1:
        raise InputError.rule("--nproc-per-node", "be at least 1", processes, "raise it")
    require_torch()
    plan = check_unedited(Plan.load(plan_file), str(plan_file))
    if not script or not Path(script[0]).is_file():
        given = f"is '{script[0]}'" if script else "is none"
        raise InputError(
            f"the script must be a file but {given}; give it last, as in planner run plan.json "
            "--nproc-per-node 4 -- train.py"
        )
    nodes = _hosts()
    if processes * nodes != plan.gpus:
        raise InputError(
            f"the plan is for {plan.gpus} ranks but --nproc-per-node {processes} starts "
            f"{processes * nodes}; start as many, or plan for --gpus {processes * nodes}"
        )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    if nodes == 1:
        command.append("--standalone")
    environment = {**os.environ, PLAN_VARIABLE: str(Path(plan_file).resolve())}
    environment.setdefault("OMP_NUM_THREADS", "1")
    done = subprocess.run([*command, *script], env=environment, check=False)
    if done.returncode:
        ended = f"a rank of '{script[0]}' failed, and the others were ended"
        print(one_line(f"planner: {ended}; the first error above says why"), file=sys.stderr)
    return 1 if done.returncode else 0


def _hosts() -> int:
    """Hosts that torchrun is told of. [items]"""
    text = os.environ.get(_HOSTS, "") or "1"
    # a range is of jobs that may shrink: a plan is for one number of ranks
    least = re.match(r"\s*0*([1-9]\d{0,8})\s*(:|$)", text, re.ASCII)
    if least is None:
        rule, given = "be a number of hosts, or a range such as 1:4", f"'{plain(text)}'"
        raise InputError.rule(f"{_HOSTS} of the environment", rule, given, "correct or unset it")
    return int(least[1])
