"""Client of the Tidegate rate limiter.

``Client`` is for threads, ``AsyncClient`` for asyncio, ``rate_limit`` a decorator for both.
``tidegate.starlette`` and ``tidegate.django`` are the adapters for frameworks.
"""

from ._async import AsyncBudget, AsyncClient, AsyncReservation
from ._decorator import rate_limit
from ._sync import Budget, Client, Reservation
from ._types import (
    Check,
    Conflict,
    Decision,
    Denied,
    InvalidRequest,
    Key,
    NoAnswer,
    SettledRule,
    Settlement,
    TidegateError,
    Unauthorized,
    UnknownReservation,
    UnknownRule,
    Verdict,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncBudget",
    "AsyncClient",
    "AsyncReservation",
    "Budget",
    "Check",
    "Client",
    "Conflict",
    "Decision",
    "Denied",
    "InvalidRequest",
    "Key",
    "NoAnswer",
    "Reservation",
    "SettledRule",
    "Settlement",
    "TidegateError",
    "Unauthorized",
    "UnknownReservation",
    "UnknownRule",
    "Verdict",
    "rate_limit",
]
