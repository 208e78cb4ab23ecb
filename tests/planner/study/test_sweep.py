"""Study files: what their grids and ranges ask, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from costmodels.errors import InputError
from planner.study.sweep import MOST_QUESTIONS, Sweep, read_sweep

GRID = '[[grid]]\nmodel = "alexnet"\ngpus = [1, 2]\n'


def sweep_of(text: str, folder: Path) -> Sweep:
    path = folder / "sizes.toml"
    path.write_text(text)
    return read_sweep(str(path))


def test_a_grid_asks_every_combination_the_last_input_fastest(tmp_path):
    sweep = sweep_of(
        '[grid]\nmodel = ["alexnet", "vgg16"]\ngpus = 4\nmemory = ["1 GiB", "2 GiB"]\n', tmp_path
    )
    assert sweep.name == "sizes"
    assert sweep.inputs == ("model", "gpus", "memory")
    assert sweep.varied == ("model", "memory")
    assert [tuple(one.values.values()) for one in sweep.questions] == [
        ("alexnet", 4, "1 GiB"),
        ("alexnet", 4, "2 GiB"),
        ("vgg16", 4, "1 GiB"),
        ("vgg16", 4, "2 GiB"),
    ]


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("{ from = 8, to = 64, factor = 2 }", [8, 16, 32, 64]),
        ("{ from = 8, to = 65, factor = 2 }", [8, 16, 32, 64]),
        ("{ from = 1, to = 7, step = 3 }", [1, 4, 7]),
        ("{ from = 5, to = 5, step = 1 }", [5]),
        ("[3, 1]", [3, 1]),
        ("6", [6]),
    ],
)
def test_ranges_hold_both_ends(given, values, tmp_path):
    sweep = sweep_of(f'[grid]\nmodel = "alexnet"\ngpus = {given}\n', tmp_path)
    assert [one.values["gpus"] for one in sweep.questions] == values


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ('{ from = "16 GiB", to = "64GiB", factor = 2 }', ["16 GiB", "32 GiB", "64 GiB"]),
        ('{ from = "1 GiB", to = "2 GiB", step = "0.5 GiB" }', ["1 GiB", "1.5 GiB", "2 GiB"]),
    ],
)
def test_ranges_of_quantities_have_a_unit(given, values, tmp_path):
    sweep = sweep_of(f'[grid]\nmodel = "alexnet"\ngpus = 2\nmemory = {given}\n', tmp_path)
    assert [one.values["memory"] for one in sweep.questions] == values


def test_a_range_of_fractions_reaches_its_end(tmp_path):
    text = f"{GRID}expert_capacity = {{ from = 1.0, to = 1.3, step = 0.1 }}\n"
    values = {one.values["expert_capacity"] for one in sweep_of(text, tmp_path).questions}
    assert sorted(values) == pytest.approx([1.0, 1.1, 1.2, 1.3])


def test_several_grids_ask_equal_questions_once(tmp_path):
    sweep = sweep_of(f"{GRID}{GRID.replace('[1, 2]', '[2, 4]')}seq_len = 64\n{GRID}", tmp_path)
    assert [dict(one.values) for one in sweep.questions] == [
        {"model": "alexnet", "gpus": 1},
        {"model": "alexnet", "gpus": 2},
        {"model": "alexnet", "gpus": 2, "input_size": 64},
        {"model": "alexnet", "gpus": 4, "input_size": 64},
    ]
    assert len({one.key for one in sweep.questions}) == 4


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ("{ from = 1.0, to = 2.0, step = 1.0 }", [1, 2]),
        ("{ from = 4, to = 9.5, factor = 1.5 }", [4, 6, 9]),
    ],
)
def test_ranges_of_whole_numbers_are_whole_though_written_as_fractions(values, asked, tmp_path):
    """They were refused with "gpus must be a whole number but is 1.0"."""
    sweep = sweep_of(f'[grid]\nmodel = "alexnet"\ngpus = {values}\n', tmp_path)
    assert [one.values["gpus"] for one in sweep.questions] == asked
    assert all(isinstance(one.values["gpus"], int) for one in sweep.questions)


def test_questions_about_changed_files_are_other_questions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = '[grid]\nmodel = "net.toml"\ngpus = 1\n'
    keys = []
    for content in ("one", "two", "one"):
        Path("net.toml").write_text(content)
        keys.append(sweep_of(text, tmp_path).questions[0].key)
    assert keys[0] == keys[2] != keys[1]
    monkeypatch.setattr(planner, "__version__", "another")
    assert sweep_of(text, tmp_path).questions[0].key != keys[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have at least one [[grid]] table but has none"),
        ("grid = []\n", "must have at least one [[grid]] table but has none"),
        ("grid = 3\n", "must have at least one [[grid]] table but has none"),
        (f"jobs = 2\n{GRID}", "must hold a name and [[grid]] tables but has 'jobs'"),
        (f'name = ""\n{GRID}', "the name in the study file"),
        (f'name = "{"n" * 201}"\n{GRID}', "be text of at most 200 characters"),
        (f"name = 7\n{GRID}", "be text of at most 200 characters"),
        (f"{GRID}gpu = 3\n", "has 'gpu'; use one of gpus"),
        (f"{GRID}dump_problem = 'x.json'\n", "has 'dump_problem'"),
        (f"{GRID}seq_len = 3\ninput_size = 3\n", "gives input_size twice"),
        (f"{GRID}memory = []\n", "the values of memory must be at least one but are none"),
        (f"{GRID}precision = 16\n", "precision must be text but is 16"),
        (f'{GRID}cap = "x"\n', "cap must be a whole number but is 'x'"),
        (f"{GRID}cap = [4, 0]\n", "grid 1: the cap on candidates"),
        (f"{GRID}cluster = 3\n", "cluster must be a name or a path but is 3"),
        ('[grid]\nmodel = ["alexnet", ""]\ngpus = 2\n', "model must be a name or a path but is ''"),
        (f"{GRID}cluster = 1979-05-27\n", "cluster must be a name or a path"),
        ('[grid]\nmodel = "alexnet"\n', "grid 1 lacks gpus; add gpus"),
        ("[grid]\nseed = 1\n", "grid 1 lacks model and gpus"),
        (f"{GRID}memory = 3.5\n", 'the size must have a unit but is "3.5"'),
        (f"{GRID}launch_time = [1]\n", "the launch time must have a unit but is"),
        (f"{GRID}memory = {{ from = 1, to = 4, step = 1 }}\n", "must be of quantities in one unit"),
        (f"{GRID}memory = {{ from = '1 GB', to = '4 GiB', factor = 2 }}\n", "in one unit"),
        (f"{GRID}memory = {{ from = '1 GiB', to = '4 GiB', step = 1 }}\n", "in one unit"),
        (f"{GRID}memory = {{ from = '4 GiB', to = '1 GiB', step = '1 GiB' }}\n", "must rise"),
        (f"{GRID}memory = {{ from = '1 XiB', to = '4 XiB', factor = 2 }}\n", "XiB"),
        (f"{GRID}cap = {{ from = 1 }}\n", "the range of cap must be numbers like"),
        (f"{GRID}cap = {{ from = 1, to = 2 }}\n", "the range of cap must be numbers like"),
        (f"{GRID}cap = {{ from = 1, to = 4, step = 1, factor = 2 }}\n", "be numbers like"),
        (f"{GRID}cap = {{ from = '1', to = 4, step = 1 }}\n", "be numbers like"),
        (f"{GRID}cap = {{ from = 4, to = 1, step = 1 }}\n", "must rise"),
        (f"{GRID}cap = {{ from = 1, to = 4, step = 0 }}\n", "must rise"),
        (f"{GRID}cap = {{ from = 1, to = 4, factor = 1 }}\n", "must rise"),
        (f"{GRID}cap = {{ from = 0, to = 4, factor = 2 }}\n", "must rise"),
        (
            f"{GRID}cap = {{ from = 1, to = 2, step = 0.5 }}\n",
            "whole numbers but has 1.5 by its step of 0.5; correct the step",
        ),
        (
            f"{GRID}cap = {{ from = 2, to = 9, factor = 1.5 }}\n",
            "whole numbers but has 4.5 by its factor of 1.5; correct the factor",
        ),
        (
            f"{GRID}cap = {{ from = 0.5, to = 9, step = 1 }}\n",
            "whole numbers but begins with 0.5; correct where it begins",
        ),
        (f"{GRID}seed = {{ from = 0, to = 1e9, step = 1 }}\n", "questions but asks more; take"),
        (f"{GRID}seed = {[*range(101)]}\ncap = {[*range(1, 101)]}\n", "but asks 20,200; take"),
        (f"{GRID}cap = {{ from = 1.0, to = 1e308, factor = 1e200 }}\n", "a whole number"),
        (f"{GRID}time_limit = {{ from = 1, to = inf, step = 2 }}\n", "must rise"),
        (f"{GRID}seed = {{ from = 0, to = 9999, step = 1 }}\n", f"at most {MOST_QUESTIONS:,}"),
        ("[grid\n", "must be valid TOML"),
    ],
)
def test_what_is_wrong_with_a_study_file_is_one_sentence(text, message, tmp_path):
    with pytest.raises(InputError) as caught:
        sweep_of(text, tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
