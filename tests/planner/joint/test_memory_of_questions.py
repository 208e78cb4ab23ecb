"""What stays in memory of a question that is answered."""

import gc

import pytest

import planner


@pytest.mark.parametrize(
    "question",
    [
        {"model": "gpt2", "gpus": 16, "global_batch_size": 64},
        {"model": "gpt2", "gpus": 8, "global_batch_size": 32, "memory": "2.2 GiB"},
        {"model": "alexnet", "gpus": 8, "global_batch_size": 64, "memory": "1.3 GiB"},
    ],
    ids=["free", "offload", "splits"],
)
def test_a_question_leaves_nothing_that_refers_to_itself(question):
    # what refers to itself stays in memory for long: nobody looks for it while plans are searched
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        planner.optimize(**question)
        gc.collect()
        ours = ("planner", "costmodels", "search")
        left = {type(one) for one in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not [kind for kind in left if kind.__module__.partition(".")[0] in ours]
