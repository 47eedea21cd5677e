"""The settings of the command line and the environment, read once."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from det_keras.errors import DetError
from det_keras.home import Home


@dataclass(frozen=True)
class Settings:
    """The settings of every command.

    Attributes:
        home: the data root.
        master: the master's address as given; None for the embedded master.
        user: the user whose token is used; None for the last login.
        environment_user: the user of `token` and `password`.
        token: a token from the environment.
        password: a password from the environment.
        cert_file: the CA bundle for TLS, or ``noverify``.
        cert_name: the name in the master's certificate, if it is not that of its address.
        slots: number of slots of an embedded master that is started; None for one per GPU or core.
        ray: the Ray cluster on which an embedded master that is started runs tasks; None for this machine.
        is_detached: whether a script that no master started reports to this master.
    """

    home: Home
    master: str | None = None
    user: str | None = None
    environment_user: str | None = None
    token: str | None = None
    password: str | None = None
    cert_file: str | None = None
    cert_name: str | None = None
    slots: int | None = None
    ray: str | None = None
    is_detached: bool = False

    @classmethod
    def gather(cls, args: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
        """Return the settings of a command line and an environment.

        Raises:
            DetError: DET_KERAS_SLOTS is not a number of slots.
        """
        settings = cls.from_environment(environ)
        return dataclasses.replace(
            settings, master=args.master or settings.master, user=args.user or settings.user
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, master: str | None = None) -> Settings:
        """Return the settings of an environment; errors are those of `gather`.

        Args:
            environ: the environment.
            master: a master's address that takes precedence over that of the environment.
        """
        return cls(
            home=Home.from_environment(environ),
            master=master or environ.get("DET_MASTER") or None,
            user=environ.get("DET_USER") or None,
            environment_user=environ.get("DET_USER") or None,
            token=environ.get("DET_USER_TOKEN") or None,
            password=environ.get("DET_PASS"),
            cert_file=environ.get("DET_MASTER_CERT_FILE") or None,
            cert_name=environ.get("DET_MASTER_CERT_NAME") or None,
            slots=_slots(environ.get("DET_KERAS_SLOTS")),
            ray=environ.get("DET_KERAS_RAY") or None,
            is_detached=environ.get("DET_KERAS_DETACHED", "") not in ("", "0"),
        )

    @property
    def is_environment_user(self) -> bool:
        """Whether the token or password of the environment belongs to `user`."""
        return self.user == self.environment_user


def _slots(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise DetError(f"DET_KERAS_SLOTS must be a number of slots such as 2, received {text!r}.")
    return int(text)
