from __future__ import annotations

import pytest

from costmodels.errors import InputError, closest, one_line, printable, require_between


def test_text_loses_what_moves_a_cursor_or_turns_its_direction():
    assert printable("a\x1b]0;owned\x07b\x9b31m\u202etfel\u2066\x7f\0") == "a]0;ownedb31mtfel"
    assert printable("名前 é\tx\n") == "名前 é\tx\n"


@pytest.mark.parametrize("value", ["x" * 10**6, "x " * 10**6, "'" * 10**6, "'x' " * 10**6])
@pytest.mark.parametrize("form", ["the kind '{}' is unknown; use one of a", "{} is no path; write"])
def test_a_message_is_one_line_of_bounded_length(form, value):
    message = str(InputError(form.format(value)))
    assert len(message) < 600
    assert message.startswith(form.split("{")[0])
    assert message.endswith(form.split("}")[1][-10:])


def test_one_long_value_leaves_the_rest_of_a_message():
    text = one_line(f"the solver must be one of a, b but is '{'x' * 5000}'; choose one")
    assert text.startswith("the solver must be one of a, b but is 'xxx")
    assert text.endswith("xxx'; choose one")
    assert len(text) < 140


def test_short_messages_stay():
    for text in ("it's 'a' or 'b'; use one", "'*' is 3 km/s", "a 50 % share"):
        assert one_line(text) == text


def test_figures_out_of_range_are_said_with_their_unit():
    for value in (0.0, 1e18):
        require_between("the size", value, (0, 1e18), "lower it", unit="B")
    for value, shown in ((-1.0, "-1 B"), (2e18, "2e+18 B"), (float("nan"), "nan B")):
        with pytest.raises(InputError) as error:
            require_between("the size", value, (0, 1e18), "lower it", unit="B")
        assert str(error.value) == f"the size must be from 0 to 1e+18 B but is {shown}; lower it"


@pytest.mark.parametrize(
    ("name", "known", "first"),
    [
        ("lasen", ("abci", "lassen"), "lassen, abci"),
        ("LASSEN", ("abci", "lassen"), "lassen, abci"),
        ("conv1", ("fc", "Conv1", "conv2"), "Conv1, conv2, fc"),
        ("v100", ("p100", "h100", "v100-16gb", "v100-32gb"), "v100-16gb, v100-32gb, p100, h100"),
        ("", ("b", "a"), "b, a"),
    ],
)
def test_the_closest_names_come_first(name, known, first):
    assert closest(name, known) == first
