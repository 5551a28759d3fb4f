"""Rows of a ledger, for comparison."""

from __future__ import annotations

from byteps_py.kernels.ledger import Row


def shown(row: Row | None) -> object:
    """A row in values that can be compared."""
    if row is None:
        return None
    payloads = {rank: None if payload is None else bytes(payload) for rank, payload in row.payloads.items()}
    result = row.result
    last = result and (result.round, result.entry.tobytes(), None if result.data is None else result.data.tobytes())
    return row.key, row.round, row.terms, payloads, row.stamps, last
