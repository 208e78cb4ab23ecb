"""Notes: facts of a kind while a plan is searched, sentences once it is put together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import search
from planner.notes import WORDS, words
from planner.plan import SearchSummary
from planner.planning.summary import summary_notes
from search.problem.notes import Note


def summary(num_candidates: int = 9, stopped_by: str = "") -> SearchSummary:
    return SearchSummary(
        solver="elimination",
        status="optimal",
        lower_bound_s=1.0,
        proven_optimal=True,
        gap=0.0,
        num_sensible=9,
        num_candidates=num_candidates,
        cap=3,
        num_costed=1,
        stopped_by=stopped_by,
    )


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (
            Note.of("space-clipped", searched=8406, sensible=135288, cap=68),
            "8406 of 135288 sensible candidates were searched, at most about 68 a layer (--cap); "
            "the bound holds for all others, too",
        ),
        (
            Note.of("search-stopped", reason="interrupt"),
            "search stopped early by interrupt: best plan so far",
        ),
        (
            Note.of("simplest-chosen", slower=0.0031, changes=1, others=7),
            "the simplest of the plans within 1 % of the fastest was chosen: 1 change of split "
            "between neighbours instead of 7, and 0.3% slower",
        ),
        (
            Note.of("gpus-left-idle", idle=1, gpus=3),
            "1 of 3 GPUs is left without work: every way to use it that was tried is slower, or "
            "does not fit",
        ),
        (
            Note.of("idle-devices", idle=2, devices=6),
            "2 of 6 devices are in no stage and do nothing",
        ),
        (
            Note.of("memory-nearly-full", part=0.953),
            "the peak is 95% of the memory, and the fragmentation of the framework's allocator is "
            "not modelled: try it before use",
        ),
    ],
)
def test_every_fact_is_in_the_sentence(note: Note, sentence: str) -> None:
    assert words(note) == sentence


def test_a_kind_without_words_is_a_bug_and_says_so() -> None:
    with pytest.raises(KeyError, match="no-such-kind"):
        words(Note.of("no-such-kind"))


def test_a_whole_search_needs_no_notes() -> None:
    assert summary_notes(summary(), 1.0) == ()


def test_a_bound_that_the_step_undercuts_is_withdrawn_aloud() -> None:
    (note,) = summary_notes(replace(summary(), lower_bound_s=0.0), 0.002)
    assert "a bound of 2 ms, which the simulated step undercuts" in words(note)


def test_what_was_left_out_and_what_stopped_it_are_told_apart() -> None:
    notes = summary_notes(summary(num_candidates=3, stopped_by="time limit"), 1.0)
    assert [note.kind for note in notes] == ["space-clipped", "search-stopped"]


def test_every_kind_of_note_has_words_and_all_words_are_said() -> None:
    root = Path(search.__file__).parent.parent
    texts = {
        path: path.read_text(encoding="utf-8")
        for package in ("search", "costmodels", "planner")
        for path in (root / package).rglob("*.py")
    }
    kinds = {
        kind
        for text in texts.values()
        for kind in re.findall(r'Note(?:\.of)?\(\s*"([a-z-]+)"', text)
    }
    assert kinds <= set(WORDS)
    said = "".join(text for path, text in texts.items() if path != root / "planner" / "notes.py")
    assert [kind for kind in WORDS if f'"{kind}"' not in said] == []
