"""In which session something works that lives longer: after a ``resume()`` it begins anew, and all must agree again."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from byteps_py.session import Session
from byteps_py.torch.agreement import Agreement

__all__ = ["Generation"]


class Generation:
    """Belongs to one thread at a time.

    Args:
        session: the first.
        ask: a method that asks in a session whether all workers mean the same; its object is not kept alive by this.
    """

    def __init__(self, session: Session, ask: Callable[[Session], Agreement]) -> None:
        # Else the object would live on until garbage is collected, and its hooks with it.
        self._ask = weakref.WeakMethod(ask)
        self._session = weakref.ref(session)
        self._agreement: Agreement | None = ask(session)

    def has_changed(self, session: Session) -> bool:
        """Whether ``session`` is another one than in the last call; then all are asked anew."""
        if self._session() is session:
            return False
        ask = self._ask()
        assert ask is not None  # it is what calls this
        self._session = weakref.ref(session)
        self._agreement = ask(session)
        return True

    def check(self) -> None:
        """Wait until all have said what they mean, if nobody has waited for that yet.

        Raises:
            AgreementError: they differ.
            BytePSError: as of the session.
        """
        agreement, self._agreement = self._agreement, None
        if agreement is not None:
            agreement.check()
