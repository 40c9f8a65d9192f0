"""Sessions of users, which are in memory, and the limit of attempts, such as to sign in."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict

from cometmq.console.pages import Role
from cometmq.system.clock import Clock

SESSIONS_MAX = 1_000
"""Over all users; the one that was used least recently ends for a new one."""
SESSIONS_OF_USER_MAX = 16
IDLE_S, AGE_S = 3_600.0, 12 * 3_600.0
"""A session ends after an hour without a request, and after twelve hours in any case."""
ATTEMPTS_MAX, WINDOW_S = 10, 60.0
"""Attempts of a key, such as an address or a user, in a minute."""
KEYS_MAX = 10_000


class Session:
    """A user that has signed in."""

    __slots__ = ("begin", "form_token", "hash", "last", "role", "user")

    def __init__(self, user: str, now: float, role: Role | None = None, hash: str = "") -> None:
        self.user = user
        self.role = role
        """Of a user of a provider; None for a user of the file, which has the role."""
        self.hash = hash
        """That of the user's line in the file at the sign-in; another password has another one."""
        self.form_token = secrets.token_urlsafe(32)
        """The forms of the session have it; the forms of other sites do not."""
        self.begin = self.last = now


class Sessions:
    """The sessions by token; of a token only the hash is kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, user: str, role: Role | None = None, hash: str = "") -> tuple[str, Session]:
        """Begin a session; return its token."""
        token = secrets.token_urlsafe(32)
        own = [key for key, each in self._sessions.items() if each.user == user]
        for key in own[: max(len(own) - SESSIONS_OF_USER_MAX + 1, 0)]:
            del self._sessions[key]
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        session = Session(user, self._clock.monotonic(), role, hash)
        self._sessions[_key(token)] = session
        return token, session

    def find(self, token: str) -> Session | None:
        """Return the session of a token, if it has not ended; the request uses it."""
        key = _key(token)
        session = self._sessions.get(key)
        if session is None:
            return None
        now = self._clock.monotonic()
        if now - session.last > IDLE_S or now - session.begin > AGE_S:
            del self._sessions[key]
            return None
        session.last = now
        self._sessions.move_to_end(key)
        return session

    def end(self, token: str) -> None:
        """End the session of a token."""
        self._sessions.pop(_key(token), None)


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


class AttemptLimit:
    """Counts attempts in a minute, such as those to sign in of an address and for a user."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    def is_exceeded(self, key: str) -> bool:
        """Whether a further attempt would be refused; counts none."""
        begin, count = self._attempts.get(key, (0.0, 0))
        return count >= ATTEMPTS_MAX and self._clock.monotonic() - begin < WINDOW_S

    def wait_s(self, key: str) -> float:
        """Count an attempt; return how long to wait before it, 0 if it is allowed."""
        now = self._clock.monotonic()
        begin, count = self._attempts.pop(key, (now, 0))
        if now - begin >= WINDOW_S:
            begin, count = now, 0
        while len(self._attempts) >= KEYS_MAX:
            self._attempts.popitem(last=False)
        self._attempts[key] = begin, count + 1
        return begin + WINDOW_S - now if count >= ATTEMPTS_MAX else 0.0

    def first_refusal(self, key: str) -> bool:
        """Whether the attempt that was counted last is the first one of its minute too many."""
        return self._attempts.get(key, (0.0, 0))[1] == ATTEMPTS_MAX + 1
