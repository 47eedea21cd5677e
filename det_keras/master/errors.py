"""The errors that the master returns to clients."""

from __future__ import annotations

import errno

from det_keras.errors import DetError


class ApiError(DetError):
    """A refused call, and the error fields of its response.

    Attributes:
        status: the HTTP status.
        code: the gRPC number of the error.
        reason: the gRPC name of the error.
    """

    status = 500
    code = 13
    reason = "Internal"


class InvalidArgumentError(ApiError):
    """The request itself is wrong."""

    status, code, reason = 400, 3, "InvalidArgument"


class FailedPreconditionError(ApiError):
    """The request is valid, but not in the current state."""

    status, code, reason = 400, 9, "FailedPrecondition"


class UnauthenticatedError(ApiError):
    """The request has no credentials, or unknown ones."""

    status, code, reason = 401, 16, "Unauthenticated"


class PermissionDeniedError(ApiError):
    """The caller is known but not allowed to do this."""

    status, code, reason = 403, 7, "PermissionDenied"


class NotFoundError(ApiError):
    """The requested object does not exist."""

    status, code, reason = 404, 5, "NotFound"


class AlreadyExistsError(ApiError):
    """The object exists already."""

    status, code, reason = 409, 6, "AlreadyExists"


class AbortedError(ApiError):
    """Another change came first."""

    status, code, reason = 409, 10, "Aborted"


class TooManyRequestsError(ApiError):
    """The caller asks for too much.

    Args:
        message: what is too much, and what to do.
        wait_s: after how many seconds the call may succeed; None if time alone does not help.
    """

    status, code, reason = 429, 8, "ResourceExhausted"

    def __init__(self, message: str, wait_s: int | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class UnimplementedError(ApiError):
    """A call of Determined's API that this master does not serve."""

    status, code, reason = 501, 12, "Unimplemented"


class UnavailableError(ApiError):
    """Temporarily unavailable; clients retry."""

    status, code, reason = 503, 14, "Unavailable"


class DiskFullError(UnavailableError):
    """The disk of the data root is full; nothing was stored."""

    def __init__(self) -> None:
        super().__init__(
            "The disk of the master's data root is full, and nothing was stored. Free some space there."
        )


class OutOfFilesError(UnavailableError):
    """The master has as many files open as it may have."""

    def __init__(self) -> None:
        super().__init__("The master has too many files open at the moment. Try again.")


def is_disk_full(error: Exception) -> bool:
    """Return whether an error of the system says that nothing more can be stored."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def unavailability(error: Exception) -> UnavailableError | None:
    """Return how a call is refused that failed because something is used up; None for an error of the program."""
    if is_disk_full(error):
        return DiskFullError()
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return OutOfFilesError()
    return None
