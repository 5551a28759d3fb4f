"""How a worker leaves, without a socket or a clock."""

from __future__ import annotations

from typing import cast

import pytest

from byteps_py.errors import TransportTimeout
from byteps_py.roles.goodbye import LEAVE_SECONDS, WITHDRAW_SECONDS, Goodbye
from byteps_py.roles.member import SchedulerLink
from byteps_py.wire.control import Bye, ControlMessage


class Link:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.sent: list[ControlMessage] = []

    def send(self, message: ControlMessage) -> None:
        self.sent.append(message)


def goodbye(failure: str = "", *, joined: bool = True) -> tuple[Goodbye, list[ControlMessage]]:
    link = Link()
    return Goodbye(cast(SchedulerLink, link), 10.0, failure, joined=joined), link.sent


def test_what_is_owed_comes_first_and_the_goodbye_is_repeated_until_confirmed() -> None:
    leaving, sent = goodbye()
    assert not leaving.may_end(10.0, "something")
    assert sent == []
    assert not leaving.may_end(10.1, "")
    assert not leaving.may_end(10.2, "")
    assert sent == [Bye()]
    assert not leaving.may_end(11.2, "")
    assert sent == [Bye(), Bye()]
    leaving.confirmed = True
    assert leaving.may_end(11.3, "")


@pytest.mark.parametrize(("owed", "words"), [("3 partitions were lost", "3 partitions"), ("", "nobody answered")])
def test_an_orderly_goodbye_has_a_deadline(owed: str, words: str) -> None:
    leaving, _ = goodbye()
    with pytest.raises(TransportTimeout, match=words):
        leaving.may_end(10.0 + LEAVE_SECONDS, owed)


def test_whoever_dies_of_an_error_says_so_at_once_and_goes_in_any_case() -> None:
    leaving, sent = goodbye("ValueError: x")
    assert not leaving.may_end(10.0, "something")
    assert sent == [Bye("ValueError: x")]
    assert leaving.may_end(10.0 + LEAVE_SECONDS, "something")


def test_before_the_job_is_complete_the_place_is_given_back() -> None:
    leaving, sent = goodbye(joined=False)
    assert not leaving.may_end(10.0, "")
    assert sent == [Bye("gave init() up")]
    assert leaving.may_end(10.0 + WITHDRAW_SECONDS, "")


def test_who_serves_the_machine_stays_for_as_long_as_it_takes() -> None:
    leaving, sent = goodbye()
    for now in (10.0, 13.0, 16.0, 19.0):
        assert not leaving.may_end(now, "others wait", serves=True)
    assert sent == []
    assert not leaving.may_end(19.1, "")
    assert sent == [Bye()]
    with pytest.raises(TransportTimeout, match="nobody answered"):
        leaving.may_end(19.0 + LEAVE_SECONDS, "")


def test_whoever_dies_of_an_error_serves_nobody() -> None:
    leaving, sent = goodbye("ValueError: x")
    assert not leaving.may_end(10.0, "others wait", serves=True)
    assert sent == [Bye("ValueError: x")]
    assert leaving.may_end(10.0 + LEAVE_SECONDS, "others wait", serves=True)
