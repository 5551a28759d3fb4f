"""The words of rejections: who, with which values, and what to do."""

from __future__ import annotations

from byteps_py.core import rejections
from byteps_py.types import DType, Operation

MINE = (DType.FLOAT32, Operation.AVERAGE, 0, 3, 0, 10)


def test_both_sides_of_a_disagreement() -> None:
    theirs = (DType.FLOAT32, Operation.SUM, 0, 3, 0, 10)
    expected = (
        "workers disagree in round 5: worker 0 pushes AVERAGE of 10 float32 elements at step 3, "
        "worker 1 pushes SUM of 10 float32 elements at step 3; "
        "all workers must make the same calls on a tensor in the same order"
    )
    assert rejections.disagreement(5, 0, MINE, 1, theirs) == expected
    assert rejections.disagreement(5, 1, theirs, 0, MINE) == expected


def test_the_two_sides_may_come_from_one_rank() -> None:
    text = rejections.disagreement(1, 0, MINE, 0, (DType.INT8, *MINE[1:]))
    assert "of 10 float32 elements at step 3, worker 0 pushes AVERAGE of 10 int8" in text


def test_offsets_are_named_only_where_they_differ() -> None:
    shifted = (*MINE[:4], 30, 10)
    assert "offset" not in rejections.disagreement(1, 0, shifted, 1, (DType.INT8, *shifted[1:]))
    text = rejections.disagreement(1, 0, MINE, 1, shifted)
    assert "worker 0 pushes AVERAGE of 10 float32 elements at step 3 at offset 0, worker 1" in text
    assert "at step 3 at offset 30;" in text


def test_roots_are_named_in_broadcasts_and_where_they_differ() -> None:
    other_root = (*MINE[:2], 1, *MINE[3:])
    assert "at step 3 from root 0, worker 1" in rejections.disagreement(1, 0, MINE, 1, other_root)
    broadcast = (DType.FLOAT32, Operation.BROADCAST, 0, 3, 0, 10)
    assert "BROADCAST of 10 float32 elements at step 3 from root 0;" in rejections.disagreement(
        1, 0, MINE, 1, broadcast
    )


def test_a_root_that_is_nobody() -> None:
    text = rejections.unknown_root(1, (DType.INT8, Operation.BROADCAST, 9, 3, 0, 10), (0, 1, 2, 3))
    assert text == (
        "worker 1 pushes BROADCAST of 10 int8 elements at step 3 from root 9, "
        "but contributions come from workers 0 to 3"
    )


def test_the_others_name_the_worker_and_the_round() -> None:
    assert "worker 2 left the job before it contributed to round 7" in rejections.departure(2, 7)
    assert "worker 2 pushes round 8 while round 7 is open" in rejections.ahead(2, 8, 7)
    assert "worker 2 asks for the result of round 6" in rejections.gone(2, 6)
    assert rejections.uncounted(2, 0) == "worker 2 names round 0: rounds are counted from 1"
    assert "of group 5, which is not known here" in rejections.unknown_group(2, 5)
    for ranks, names in [((0, 2), "workers 0, 2:"), ((1, 2, 3), "workers 1 to 3:"), ((3,), "worker 3:")]:
        assert f"worker 9 is not one of those who contribute, {names}" in rejections.outsider(9, ranks)
    assert rejections.stranger(9, 4) == "worker 9 is not in this job, which has the workers 0 to 3"
