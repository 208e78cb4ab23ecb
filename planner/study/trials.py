"""Who answers which question of a study, and what the answers are, in a storage of Optuna.

Models: a trial of Optuna for every attempt at a question. Who takes a question up adds a running
trial with its key; of running trials with one key the first counts, and the others are pruned. A
running trial whose worker is dead, or gives no sign of life, is marked as failed, so that its
question is free again.
Assumes: trials are numbered in the order in which they can be seen, as databases and journals do.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from costmodels.errors import InputError
from planner.study.answers import StudyAnswer
from planner.study.sweep import StudyQuestion

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

# How often a worker gives a sign of life, and without any for how long it is taken for dead. [s]
BEAT = 10.0
GRACE = 60.0
# A database may be in use by other workers for so long. [s]
_PATIENCE = 60
# What databases say of a table or row that another one created at the same time.
_CREATED_MEANWHILE = re.compile("already exists|unique constraint|duplicate", re.IGNORECASE)
# How a journal of Optuna begins.
_JOURNAL = b'{"op_code":'
# Workers that died of a question, in one run, before it is left alone. [items]
MOST_DEATHS = 3


@contextmanager
def storage_errors(url: str, doing: str) -> Iterator[None]:
    """Turn whatever a storage raises into one sentence.

    Parameters
    ----------
    url
        Where the study lies.
    doing
        What cannot be done, such as "opened".
    """
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        driver = re.search(r"'([\w.]+)'", str(error.__cause__ or error))
        name = driver[1] if driver else "of the database"
        raise InputError(
            f"the study at {without_password(url)} cannot be {doing}: the driver {name} is not "
            "installed; install it, or choose another --storage"
        ) from None
    except (OptunaError, SQLAlchemyError, OSError, ValueError, KeyError, RuntimeError) as error:
        reason = _root_cause(error)
        raise InputError(
            f"the study at {without_password(url)} cannot be {doing} ({reason}); check it, or "
            "choose another --storage"
        ) from None


def _root_cause(error: BaseException) -> str:
    while (inner := getattr(error, "orig", None) or error.__cause__) is not None:
        error = inner
    # what drivers say over several lines begins with what is wrong
    lines = str(getattr(error, "strerror", None) or error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def without_password(url: str) -> str:
    """An address as it may be shown."""
    return re.sub(r"://([^/@:]*):[^/]*@", r"://\1:***@", url)


def _open_storage(url: str) -> Any:
    """A database where there is a scheme, else a journal file."""
    import optuna
    from optuna.storages import JournalStorage, RDBStorage, get_storage

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if "://" not in url:
        from optuna.storages.journal import JournalFileBackend

        # its lock is a link to it, whose age is not told where that leads nowhere from its folder
        path = os.path.abspath(url)
        _mend_journal(path)
        return JournalStorage(JournalFileBackend(path))
    if re.fullmatch(r"sqlite(\+\w+)?://(/:memory:)?(\?.*)?", url):
        raise InputError(
            f"the study must lie where all workers find it but is to be in memory ('{url}'); "
            "name a file, such as sqlite:///study.db"
        )
    more = {"connect_args": {"timeout": _PATIENCE}} if url.startswith("sqlite") else {}
    tries = 5
    while True:
        try:
            return get_storage(RDBStorage(url, engine_kwargs={"pool_pre_ping": True, **more}))
        except Exception as error:
            tries -= 1
            # two that create the tables of a new study at once get in each other's way
            if tries == 0 or not _CREATED_MEANWHILE.search(f"{error} {_root_cause(error)}"):
                raise
            time.sleep(0.2)


def _mend_journal(path: str) -> None:
    """Cut off a last line that was never finished, because its writer was killed or the disk full.

    What a journal holds behind such a line could not be read.
    """
    from optuna.storages.journal import JournalFileSymlinkLock
    from optuna.storages.journal._file import get_lock_file

    if not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise ValueError("it is no file")
    with open(path, "rb") as file:
        begin = file.read(len(_JOURNAL))
        if begin and begin != _JOURNAL:
            # Optuna would write behind a line that it cannot read
            raise ValueError("it is no journal of Optuna")
        file.seek(max(os.path.getsize(path) - 1, 0))
        if file.read(1) in (b"", b"\n"):
            return
    with get_lock_file(JournalFileSymlinkLock(path)), open(path, "r+b") as file:
        whole = file.read()
        if not whole.endswith(b"\n"):
            file.truncate(whole.rfind(b"\n") + 1)


def _birth(pid: int) -> str:
    """When a process began, which tells it from another one of the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _where_it_runs() -> str:
    """The machine, and the container on it, whose processes this one can see."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def this_worker() -> dict[str, object]:
    """Which process this is, for others to find out whether it lives."""
    return {"place": _where_it_runs(), "pid": os.getpid(), "birth": _birth(os.getpid())}


def _is_dead(worker: object) -> bool:
    """Whether a worker is known to be dead; of one elsewhere nothing is known."""
    if not isinstance(worker, dict) or worker.get("place") != _where_it_runs():
        return False
    pid = int(worker["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _birth(pid) != str(worker["birth"])


class Trials(Struct, kw_only=True):
    """The trials of a study.

    Parameters
    ----------
    url
        Where the study lies.
    name
        Its name.
    storage, study_id
        As Optuna knows them.
    first
        Number of the first trial of this run. [items]
    """

    url: str
    name: str
    storage: Any
    study_id: int
    first: int = 0
    _seen: dict[int, tuple[object, float]] = field(default_factory=dict)

    @classmethod
    def open(cls, url: str, name: str, first: int | None = None) -> Trials:
        """Open a study, or begin it.

        Parameters
        ----------
        url, name, first
            As of the class; by default this run begins with the next trial.

        Raises
        ------
        InputError
            When that cannot be done.
        """
        import optuna

        with storage_errors(url, "opened"):
            storage = _open_storage(url)
            study = optuna.create_study(
                storage=storage, study_name=name, direction="minimize", load_if_exists=True
            )
            trials = cls(url=url, name=name, storage=storage, study_id=study._study_id)
            trials.first = len(trials.all_trials()) if first is None else first
        return trials

    def all_trials(self) -> Sequence[FrozenTrial]:
        """All trials, in their order."""
        found: Sequence[FrozenTrial] = self.storage.get_all_trials(self.study_id, deepcopy=False)
        return found

    def answers(self) -> dict[str, FrozenTrial]:
        """The trial that answered a question, by its key."""
        found: dict[str, FrozenTrial] = {}
        for trial in self.all_trials():
            if trial.state.name == "COMPLETE" and "status" in trial.user_attrs:
                found.setdefault(trial.user_attrs.get("key", ""), trial)
        return found

    def running(self) -> list[FrozenTrial]:
        """Trials that somebody is at."""
        return [trial for trial in self.all_trials() if trial.state.name == "RUNNING"]

    def deaths(self) -> dict[str, int]:
        """How many workers died in this run, by the key of the question that they were at."""
        found: dict[str, int] = {}
        for trial in self.all_trials():
            if trial.state.name == "FAIL" and trial.number >= self.first:
                key = trial.user_attrs.get("key", "")
                found[key] = found.get(key, 0) + 1
        return found

    def free_the_dead(self) -> None:
        """Give up the trials of workers that are dead, or gave no sign of life for long."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        now = time.monotonic()
        for trial in self.running():
            beat, since = self._seen.get(trial.number, (None, now))
            if (sign := trial.user_attrs.get("beat", 0)) != beat:
                beat, since = sign, now
            self._seen[trial.number] = (beat, since)
            if _is_dead(trial.user_attrs.get("worker")) or now - since > GRACE:
                with suppress(UpdateFinishedTrialError):
                    self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    def take(self, questions: Sequence[StudyQuestion]) -> tuple[int, StudyQuestion] | None:
        """Take up the first question that nobody has; None where there is none now.

        Parameters
        ----------
        questions
            Those of the study.

        Returns
        -------
        tuple
            The trial, and the question.
        """
        from optuna.trial import TrialState, create_trial

        while True:
            busy = {trial.user_attrs.get("key") for trial in self.running()}
            busy |= set(self.answers()) | set(self.given_up())
            question = next((one for one in questions if one.key not in busy), None)
            if question is None:
                return None
            attributes = {"key": question.key, "worker": this_worker(), **question.values}
            wanted = create_trial(state=TrialState.RUNNING, user_attrs=attributes)
            trial_id = self.storage.create_new_trial(self.study_id, template_trial=wanted)
            mine = [t for t in self.running() if t.user_attrs.get("key") == question.key]
            if mine and mine[0]._trial_id == trial_id and question.key not in self.answers():
                return trial_id, question
            self.storage.set_trial_state_values(trial_id, TrialState.PRUNED)

    def given_up(self) -> Collection[str]:
        """Keys of the questions that too many workers died of in this run."""
        return {key for key, count in self.deaths().items() if count >= MOST_DEATHS}

    def beat(self, trial_id: int, number: int) -> None:
        """Give a sign of life."""
        self.storage.set_trial_user_attr(trial_id, "beat", number)

    def keep(self, trial_id: int, answer: StudyAnswer) -> None:
        """Keep an answer; it is dropped if the trial was taken for dead meanwhile."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        with suppress(UpdateFinishedTrialError):
            for name, value in answer.attributes().items():
                self.storage.set_trial_user_attr(trial_id, name, value)
            self.storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [answer.value])
