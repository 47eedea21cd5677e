"""What the master answers when it refuses a call."""

from __future__ import annotations

from det_keras.errors import DetError

__all__ = [
    "AlreadyExistsError",
    "ApiError",
    "FailedPreconditionError",
    "InvalidArgumentError",
    "NotFoundError",
    "PermissionDeniedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
]


class ApiError(DetError):
    """A refusal, with what travels on the wire.

    Attributes:
        status: of HTTP.
        code: the number of the class in the protocol.
        reason: the name of the class in the protocol.
    """

    status = 500
    code = 13
    reason = "Internal"


class InvalidArgumentError(ApiError):
    """The request itself is wrong."""

    status, code, reason = 400, 3, "InvalidArgument"


class FailedPreconditionError(ApiError):
    """The request is right, but not in this state."""

    status, code, reason = 400, 9, "FailedPrecondition"


class UnauthenticatedError(ApiError):
    """Nobody, or somebody unknown, asks."""

    status, code, reason = 401, 16, "Unauthenticated"


class PermissionDeniedError(ApiError):
    """The caller is known and may not."""

    status, code, reason = 403, 7, "PermissionDenied"


class NotFoundError(ApiError):
    """There is no such thing."""

    status, code, reason = 404, 5, "NotFound"


class AlreadyExistsError(ApiError):
    """There is such a thing already."""

    status, code, reason = 409, 6, "AlreadyExists"


class UnimplementedError(ApiError):
    """A call of the protocol that this master does not serve."""

    status, code, reason = 501, 12, "Unimplemented"


class UnavailableError(ApiError):
    """Not now; clients ask again."""

    status, code, reason = 503, 14, "Unavailable"
