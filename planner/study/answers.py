"""What a study keeps of a question: its plan, or why it has none."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct

from costmodels.errors import InputError, one_line
from planner.errors import InfeasibleError
from planner.joint.requests import optimize_request
from planner.plan import Plan
from planner.study.sweep import StudyQuestion

# Some databases keep no longer texts. [characters]
_LONGEST_TEXT = 60_000
# What an answer can be, in a word, where it is no plan.
NO_PLAN = ("infeasible", "not found", "stopped", "refused", "defect")


class StudyAnswer(Struct, frozen=True, kw_only=True, dict=True):
    """The answer to a question.

    Parameters
    ----------
    status
        "optimal" or "feasible" with a plan; else "infeasible" (proven), "not found", "stopped",
        "refused" (the question cannot be asked) or "defect" (of the planner).
    message
        Why there is no plan.
    text
        The plan as JSON, empty where there is none.
    """

    status: str
    message: str = ""
    text: str = ""

    @cached_property
    def plan(self) -> Plan | None:
        """The plan."""
        return Plan.from_json(self.text, where="a plan of the study") if self.text else None

    @property
    def value(self) -> float:
        """What the study minimises: the step, infinite where there is no plan. [s]"""
        return math.inf if self.plan is None else self.plan.step_time_s

    def attributes(self) -> dict[str, object]:
        """What is kept with a trial."""
        packed = base64.b64encode(zlib.compress(self.text.encode(), 9)).decode()
        pieces = range(0, len(packed), _LONGEST_TEXT) if self.text else ()
        plan = {f"plan {n}": packed[at : at + _LONGEST_TEXT] for n, at in enumerate(pieces)}
        figures: dict[str, object] = {}
        if self.plan is not None:
            figures = {
                "peak_memory_bytes": self.plan.peak_memory,
                "throughput_samples_per_s": self.plan.throughput,
                "gap": self.plan.search.gap,
            }
        return {"status": self.status, "message": self.message, **figures, **plan}

    @classmethod
    def of_attributes(cls, kept: Mapping[str, object]) -> StudyAnswer:
        """An answer as it was kept."""
        count = sum(name.startswith("plan ") for name in kept)
        packed = "".join(str(kept[f"plan {n}"]) for n in range(count))
        text = zlib.decompress(base64.b64decode(packed)).decode() if packed else ""
        return cls(status=str(kept["status"]), message=str(kept["message"]), text=text)


def answered(question: StudyQuestion) -> StudyAnswer:
    """Ask a question; that there is no plan is an answer, too."""
    try:
        plan = optimize_request(question.request())
    except InfeasibleError as error:
        return StudyAnswer(status=error.status, message=one_line(str(error)))
    except InputError as error:
        return StudyAnswer(status="refused", message=str(error))
    except MemoryError:
        raise  # of this worker, and no answer
    except Exception as error:
        return StudyAnswer(status="defect", message=one_line(f"{type(error).__name__}: {error}"))
    return StudyAnswer(status=plan.search.status, text=plan.to_json())
