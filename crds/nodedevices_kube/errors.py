"""Errors of calls of an API server. Their text is for people, and says what to do."""

from __future__ import annotations

from nodedevices_common.errors import OperationError, RequestError


class KubeconfigError(OperationError):
    """A kubeconfig, or credentials in it, that cannot be used."""


class ApiError(RequestError):
    """A request that did not succeed. `names_object`: the answer names the object that it is about. `advice`: a
    sentence with what would help; or nothing."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        retry_after: float | None = None,
        names_object: bool = False,
        advice: str = "",
    ) -> None:
        super().__init__(message, status=status, retry_after=retry_after)
        self.names_object = names_object
        self.advice = advice

    @property
    def absent(self) -> bool:
        """True when this object does not exist."""
        return self.status == 404 and self.names_object

    @property
    def no_such_kind(self) -> bool:
        """True when the API server does not know the kind: its CRD is not there."""
        return self.status == 404 and not self.names_object

    @property
    def expired(self) -> bool:
        """True when the API server no longer has what a watch, or a list, would go on from. List again."""
        return self.status == 410
