"""Where servers can be, which is the best place, and why."""

from __future__ import annotations

import pytest

from byteps_py.core.shares import Machine
from byteps_py.plan import planning
from byteps_py.plan.layouts import COLOCATED, MIXED, ONE_HOST, SEPARATE, Layout, Row, best, counts, layouts
from byteps_py.plan.model import Prediction
from byteps_py.plan.planning import Job, Plan

SLOW = Job(workers=4, most=6, nbytes=25_000_000, link=23.9e6)


def the(plan: Plan, kind: str, extra_or_servers: int) -> Row:
    """The row of a kind that has so many servers, of a mixed one beside those of the worker machines."""
    own = plan.job.workers if kind == MIXED else 0
    (found,) = (
        each for each in plan.rows if each.layout.kind == kind and each.layout.servers == own + extra_or_servers
    )
    return found


def test_every_count_up_to_sixteen_then_some_of_each_doubling() -> None:
    assert counts(5) == [1, 2, 3, 4, 5]
    assert counts(16) == list(range(1, 17))
    assert counts(37, (33,)) == [*range(1, 17), 18, 20, 22, 24, 26, 28, 30, 32, 33, 36, 37]
    assert counts(3, (9,)) == [1, 2, 3]


def test_all_places() -> None:
    found = {(each.kind, each.servers): each for each in layouts(2, 3)}
    assert set(found) == {
        *((SEPARATE, 1), (SEPARATE, 2), (SEPARATE, 3)),
        *((COLOCATED, 1), (COLOCATED, 2), (COLOCATED, 3)),
        *((MIXED, 3), (MIXED, 4), (MIXED, 5)),
    }
    worker, server, both = Machine(1, 0), Machine(0, 1), Machine(1, 1)
    assert found[SEPARATE, 2] == Layout(SEPARATE, 2, 2, (worker, worker, server, server))
    assert found[COLOCATED, 1] == Layout(COLOCATED, 1, 0, (both, worker))
    assert found[COLOCATED, 3] == Layout(COLOCATED, 3, 0, (Machine(1, 2), both))
    assert found[MIXED, 3] == Layout(MIXED, 3, 1, (both, both, server))
    assert list(layouts(3, 2, one_host=True)) == [
        Layout(ONE_HOST, 1, 0, (Machine(3, 1),)),
        Layout(ONE_HOST, 2, 0, (Machine(3, 2),)),
    ]


def row(kind: str, servers: int, extra: int, seconds: float) -> Row:
    return Row(Layout(kind, servers, extra, ()), Prediction(seconds, seconds, "x", (), 4096, ()))


def test_a_machine_less_is_worth_two_percent_of_the_time() -> None:
    cheap, quick = row(COLOCATED, 4, 0, 1.019), row(SEPARATE, 4, 4, 1.0)
    assert best([quick, cheap]) is cheap
    assert best([quick, row(COLOCATED, 4, 0, 1.021)]) is quick
    fewer = row(COLOCATED, 3, 0, 1.01)
    assert best([quick, cheap, fewer]) is fewer


def test_four_servers_of_their_own_are_best_for_four_workers_with_slow_links() -> None:
    plan = planning.make(SLOW)
    assert plan.best is the(plan, SEPARATE, 4)
    assert plan.why[0].startswith("Best: 4 servers, each on a machine of its own (DMLC_NUM_SERVER=4): 1.1")
    assert plan.why[0].endswith(" s an exchange, limited by the links of the worker machines.")
    assert plan.why[1] == "With 5 servers nothing is gained: the limit is the links of the worker machines."
    assert plan.why[2].startswith("With 3 it takes 3")
    assert plan.why[2].endswith("longer: the links of the server machines.")
    assert plan.why[3].startswith("Without machines for servers: 4 servers, one on each worker machine, 1.")


def test_gains_are_against_the_next_smaller_number() -> None:
    plan = planning.make(SLOW)
    assert planning.gain(plan.rows, the(plan, SEPARATE, 1)) is None
    two, one = the(plan, SEPARATE, 2), the(plan, SEPARATE, 1)
    assert planning.gain(plan.rows, two) == pytest.approx(1 - two.prediction.seconds / one.prediction.seconds)
    assert planning.gain(plan.rows, the(plan, MIXED, 1)) is None


def test_extra_machines_help_a_mixed_job_up_to_one_for_each_worker() -> None:
    plan = planning.make(Job(workers=4, most=4, nbytes=10**9, link=23.9e6))
    seconds = [the(plan, COLOCATED, 4), *(the(plan, MIXED, extra) for extra in (1, 2, 3, 4))]
    times = [each.prediction.seconds for each in seconds]
    assert times == sorted(times, reverse=True)
    assert seconds[2].prediction.optimum == pytest.approx(1.2 * 10**9 / 23.9e6)


def test_where_more_servers_might_help_it_says_how_to_look() -> None:
    plan = planning.make(Job(workers=4, most=2, nbytes=25_000_000, link=23.9e6))
    assert plan.best.layout.servers == 6
    assert plan.why[0].startswith("Best: 6 servers, one with each of 4 worker machines, 2 on machines of their own (")
    assert plan.why[1] == "More than 2 servers were not looked at: --servers 4."


def test_a_small_model_on_a_fast_link_is_told_why_it_takes_long() -> None:
    plan = planning.make(Job(workers=8, most=8, nbytes=10**6, link=1e8, cores=64, server_cores=64))
    assert any("the model is small for such links" in each for each in plan.why)


def test_one_host_says_what_to_type() -> None:
    plan = planning.make(Job(workers=4, most=4, nbytes=10**8, link=None, one_host=True, cores=8))
    assert {each.layout.kind for each in plan.rows} == {ONE_HOST}
    assert f"(bpslaunch -s {plan.best.layout.servers})" in plan.why[0]
    assert not any("machine" in each for each in plan.why)


def test_a_step_is_between_what_overlaps_and_what_does_not() -> None:
    found = row(SEPARATE, 1, 1, 2.0)
    assert planning.step_bounds(SLOW, found) is None
    for compute, bounds in ((1.5, (2.0, 3.5)), (4.0, (4.0, 6.0))):
        job = Job(workers=4, most=1, nbytes=1, link=1e6, compute_seconds=compute)
        assert planning.step_bounds(job, found) == bounds


def test_equal_jobs_have_equal_plans() -> None:
    assert planning.make(SLOW) == planning.make(SLOW)
