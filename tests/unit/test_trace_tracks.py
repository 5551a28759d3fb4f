"""Spans on tracks: on each of them any two are apart, or one lies in the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from byteps_py.telemetry.tracks import Span, lay_out


def span(begin: int, end: int, name: str = "x") -> Span:
    return Span(begin, end, name, {})


times = st.tuples(st.integers(0, 40), st.integers(0, 15))
groups_of_spans = st.lists(
    st.lists(times.map(lambda two: span(two[0], two[0] + two[1])), min_size=1, max_size=6), max_size=12
)


def nests(track: list[Span]) -> bool:
    """Every pair of spans is apart or one lies in the other, whatever their order."""
    return all(
        one.end <= other.begin
        or other.end <= one.begin
        or (one.begin <= other.begin and other.end <= one.end)
        or (other.begin <= one.begin and one.end <= other.end)
        for index, one in enumerate(track)
        for other in track[:index]
    )


@given(groups=groups_of_spans)
def test_every_track_nests_and_nothing_is_lost(groups: list[list[Span]]) -> None:
    tracks = lay_out(groups)
    assert all(nests(track) for track in tracks)
    assert sorted(each for track in tracks for each in track) == sorted(each for group in groups for each in group)
    assert all(track == sorted(track, key=lambda each: (each.begin, -each.end)) for track in tracks)


def test_groups_one_after_the_other_share_a_track_and_others_do_not() -> None:
    groups = [[span(0, 5), span(1, 2)], [span(3, 9)], [span(5, 7), span(6, 7)], [span(7, 8)]]
    assert lay_out(groups) == [[span(0, 5), span(1, 2), span(5, 7), span(6, 7), span(7, 8)], [span(3, 9)]]


def test_a_short_group_does_not_lie_in_one_that_it_is_no_part_of() -> None:
    assert len(lay_out([[span(0, 10)], [span(2, 3)]])) == 2


def test_what_crosses_in_a_group_gets_a_track_of_its_own() -> None:
    assert lay_out([[span(0, 5), span(3, 8)]]) == [[span(0, 5)], [span(3, 8)]]


def test_what_has_no_length_is_no_part_of_what_follows() -> None:
    assert lay_out([[span(0, 1), span(1, 1)], [span(1, 2)]]) == [[span(0, 1), span(1, 1)], [span(1, 2)]]
    assert lay_out([[span(0, 1), span(1, 1)], [span(2, 3)]]) == [[span(0, 1), span(1, 1), span(2, 3)]]


def test_nothing() -> None:
    assert lay_out([]) == []
