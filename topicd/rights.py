"""Who is at the other end of a connection. Promise: a token acts as its subject and as nobody else; a local peer, whose
user id is on the list of those who may connect, is the user of that id, or whoever it says.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from topicd.channel import check_user
from topicd.errors import Forbidden, InvalidRequest
from topicd.tokens import EVERYTHING, Rights


class Principal(NamedTuple):
    rights: Rights
    uid: int | None = None  # of a local peer
    taken_at_word: bool = False  # the daemon does not ask who somebody is (channel_auth is off)

    @property
    def local(self) -> bool:
        return self.rights is EVERYTHING

    @property
    def user(self) -> str | None:
        """None: nobody; its token has no subject."""
        if self.rights.subject is not None:
            return self.rights.subject
        return user_of_uid(self.uid) if self.local and self.uid is not None else None

    @property
    def operator(self) -> bool:
        """May look after channels of others: whoever runs the daemon, a token with the scope admin."""
        return self.local or "admin" in self.rights.scopes

    def acting_as(self, wanted: str | None) -> str:
        """The user whom a request comes from. Raises Forbidden."""
        user = self.user
        if wanted is None:
            if user is None:
                message = f"token {self.rights.name!r} has no subject: nobody knows which user it stands for"
                raise Forbidden(message, token=self.rights.name)
            return user
        if self.local or self.taken_at_word or check_user(wanted) == user:
            return check_user(wanted)
        raise Forbidden(f"token {self.rights.name!r} may not act as {wanted!r}", token=self.rights.name, user=wanted)


@lru_cache(1_024)
def user_of_uid(uid: int) -> str:
    """The user name of a uid; one that has none, or one that is not allowed, is called by its number."""
    import pwd

    try:
        return check_user(pwd.getpwuid(uid).pw_name)
    except (KeyError, OSError, InvalidRequest):
        return f"uid-{uid}"
