"""The exceptions of byteps_py.

::

    BytePSError (RuntimeError)
     ├── SettingsError (ValueError)         a variable or an option is wrong; exit status 2
     ├── ProtocolError
     │    ├── LocalProtocolError            our own code tried to send something illegal
     │    └── RemoteProtocolError           a peer sent bytes that are no valid message
     ├── TransportError
     │    ├── TransportTimeout              a peer did not answer within its deadline
     │    └── PeerLost                      a peer is proven gone
     ├── MembershipError
     │    ├── JobRefused                    the scheduler did not let this process in
     │    ├── JobAborted                    the job ended early; says which process was the cause
     │    ├── ParticipantLeft               a worker said goodbye while others still wait for it
     │    └── StaleEpoch                    a message of an older membership epoch
     ├── AgreementError (ValueError)        workers disagree on shape, dtype, operation, step ...
     ├── UnsupportedError (TypeError)       a dtype, layout or object this package does not carry
     ├── OutputError                        what a command printed could not be written
     ├── TraceError                         a file is no trace, or a damaged one
     ├── KernelError                        the native kernels are missing or refused their arguments
     └── NotInitializedError (ValueError)   ``init()`` has not been called, or ``shutdown()`` has

Every message says what happened, where, and what to do next.  The classes that also derive from a built-in
do so because users of BytePS and NumPy already catch that built-in (BytePS raises ``ValueError`` before ``init``).
"""

from __future__ import annotations

__all__ = [
    "AgreementError",
    "BytePSError",
    "JobAborted",
    "JobRefused",
    "KernelError",
    "LocalProtocolError",
    "MembershipError",
    "NotInitializedError",
    "OutputError",
    "ParticipantLeft",
    "PeerLost",
    "ProtocolError",
    "RemoteProtocolError",
    "SettingsError",
    "StaleEpoch",
    "TraceError",
    "TransportError",
    "TransportTimeout",
    "UnsupportedError",
]


class BytePSError(RuntimeError):
    """Base of everything this package raises on purpose."""


class SettingsError(BytePSError, ValueError):
    """One or more settings are wrong.

    All problems that were found are collected, so that a user mends them in one go.
    """

    def __init__(self, problems: str | list[str] | tuple[str, ...]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class ProtocolError(BytePSError):
    """The wire protocol was violated."""


class LocalProtocolError(ProtocolError):
    """This process tried to send an illegal message: a fault in byteps_py itself."""


class RemoteProtocolError(ProtocolError):
    """A peer sent bytes that are not a valid message of this protocol version and job."""


class TransportError(BytePSError):
    """Bytes could not be moved."""


class TransportTimeout(TransportError):
    """A deadline passed; the message names who was waited for."""


class PeerLost(TransportError):
    """A process is proven to be gone."""


class MembershipError(BytePSError):
    """Something is wrong with who is in the job."""


class JobRefused(MembershipError):
    """The scheduler refused this process; the message says why."""


class JobAborted(MembershipError):
    """The job ended before its work was done; the message names the cause."""


class ParticipantLeft(MembershipError):
    """A worker left in order while another still waits for its contribution."""


class StaleEpoch(MembershipError):
    """A message belongs to an older membership epoch and was not acted on."""


class AgreementError(BytePSError, ValueError):
    """Workers contributed things that do not fit together; both sides are named with their values."""


class UnsupportedError(BytePSError, TypeError):
    """A dtype, memory layout or object that byteps_py does not carry."""


class OutputError(BytePSError):
    """What a command was asked to print could not be written."""


class TraceError(BytePSError):
    """A file is no trace of this package, or a damaged one; the message names it."""


class KernelError(BytePSError):
    """The summation kernels are missing, or were called with arguments they refuse."""


class NotInitializedError(BytePSError, ValueError):
    """The session API was used before ``init()`` or after ``shutdown()``."""
