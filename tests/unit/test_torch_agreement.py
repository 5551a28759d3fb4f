"""Workers that do not make the same optimizers, or broadcast the same tensors, hear what each side has."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import AgreementError  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

nn = torch.nn


def wrap(model, prefix="", make=lambda parameters: torch.optim.SGD(parameters, lr=1.0)):
    return bps.DistributedOptimizer(make(model.parameters()), model.named_parameters(prefix))


def both_fail(body, message, same=True):
    def expecting(session):
        with pytest.raises(AgreementError, match=message) as caught:
            body(session)
        return str(caught.value)

    first, second = run_workers(2, expecting)
    assert not same or first == second
    return first


def test_optimizers_made_in_another_order_are_found() -> None:
    """Of equal shapes and classes: nothing but the names tells them apart."""

    def body(session):
        names = ["generator", "judge"]
        models = {name: nn.Linear(2, 2) for name in (names if session.rank == 0 else names[::-1])}
        optimizers = {name: wrap(model, name) for name, model in models.items()}
        models["judge"](torch.ones(1, 2)).sum().backward()
        optimizers["judge"].step()  # the one asks about its second optimizer, the other about its first

    message = both_fail(
        body,
        r"the parameters of gradient exchange [12]: workers do not have the same\. Only worker 0 has .*; only worker 1",
        same=False,
    )
    assert "judge.weight (float32 (2, 2))" in message
    assert "generator.weight (float32 (2, 2))" in message
    assert "named_parameters" in message


def test_optimizers_of_other_classes_are_found() -> None:
    def body(session):
        optimizer = wrap(nn.Linear(2, 2), make=torch.optim.Adam if session.rank else torch.optim.AdamW)
        optimizer.synchronize()

    both_fail(body, r"Only worker 0 has a DistributedOptimizer of class AdamW; only worker 1 has .* class Adam\.")


@pytest.mark.parametrize("more", [0, 1])
def test_more_parameters_on_one_side_are_named(more) -> None:
    def body(session):
        layers = [nn.Linear(2, 2) for _ in range(1 + (session.rank == more))]
        wrap(nn.Sequential(*layers)).step()

    message = both_fail(body, "workers do not have the same")
    sides = {more: r"1.weight (float32 (2, 2))", 1 - more: "nothing"}
    assert f"worker {more} has 1.bias (float32 (2,)), {sides[more]}" in message
    assert f"worker {1 - more} has nothing" in message


def test_parameters_that_one_side_has_frozen_are_named() -> None:
    def body(session):
        model = nn.Linear(2, 2)
        model.bias.requires_grad_(session.rank == 1)
        wrap(model).step()

    both_fail(body, r"Only worker 0 has nothing; only worker 1 has bias")


def test_the_order_within_an_optimizer_does_not_matter_nor_who_makes_it_first() -> None:
    def body(session):
        model = nn.Linear(2, 2)
        if session.rank:
            session.barrier()
        named = list(model.named_parameters())
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), named if session.rank else named[::-1]
        )
        if not session.rank:
            session.barrier()  # worker 1 makes its own only now: making one does not wait
        for _ in range(2):
            optimizer.step()
        return len(session.agreements)

    assert run_workers(2, body) == [1, 1]


def test_one_worker_alone_asks_nobody() -> None:
    def body(session):
        wrap(nn.Linear(2, 2)).step()
        bps.broadcast_parameters({"a": torch.ones(1)})
        return session.agreements

    assert run_workers(1, body) == [[]]


def test_other_names_in_a_broadcast_are_found() -> None:
    def body(session):
        odd = "b" if session.rank else "c"
        bps.broadcast_parameters({"a": torch.ones(1), odd: torch.ones(2)})

    both_fail(body, r"Only worker 0 has Parameter\.c \(float32 \(2,\)\); only worker 1 has Parameter\.b \(float32")


def test_other_roots_are_found() -> None:
    def body(session):
        bps.broadcast_parameters({"a": torch.ones(1)}, root_rank=session.rank)

    both_fail(body, r"Only worker 0 has root 0; only worker 1 has root 1")


def test_only_those_that_differ_are_named_and_of_many_a_few() -> None:
    def body(session):
        bps.broadcast_parameters({f"{session.rank if i else ''}{i}": torch.ones(1) for i in range(9)})

    message = both_fail(body, "and 3 more")
    assert "Parameter.0 " not in message


def test_of_a_large_model_as_much_is_compared_as_there_is_room_for() -> None:
    """The digest covers all; names are random, so that they cannot be packed."""
    generator = torch.Generator().manual_seed(1)
    names = [str(each) for each in torch.randint(10**15, 10**16, (2000,), generator=generator).tolist()]
    names.sort()

    def body(session, place):
        mine = names.copy()
        mine[place] += str(session.rank)
        bps.broadcast_parameters({name: torch.ones(1) for name in mine})

    message = both_fail(lambda session: body(session, 3), "workers do not have the same")
    assert (
        f"Only worker 0 has Parameter.{names[3]}0 (float32 (1,)); only worker 1 has Parameter.{names[3]}1 " in message
    )
    message = both_fail(lambda session: body(session, 1999), "workers do not have the same")
    assert "has other names after the first " in message
