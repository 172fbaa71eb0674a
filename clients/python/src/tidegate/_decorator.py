"""``rate_limit``: a check before every call of a function."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Optional, TypeVar, Union, cast

from ._async import AsyncClient
from ._sync import Client
from ._types import Check, Denied, Key

F = TypeVar("F", bound=Callable[..., Any])

KeyOf = Union[str, Callable[..., Optional[Key]]]
CostOf = Union[int, Callable[..., int]]


def rate_limit(
    client: Union[Client, AsyncClient],
    rule: str,
    key: Optional[KeyOf] = None,
    cost: CostOf = 1,
) -> Callable[[F], F]:
    """Checks a rule before each call, and raises Denied instead of calling.

    ``key`` is the name of a parameter, or a function of the same arguments; ``cost`` is a number
    or such a function. A coroutine function needs an ``AsyncClient``, any other a ``Client``.
    """

    def decorate(function: F) -> F:
        checked = _check_of(function, rule, key, cost)
        if inspect.iscoroutinefunction(function):
            if not isinstance(client, AsyncClient):
                raise TypeError(f"{function.__name__} is a coroutine function: use an AsyncClient")
            async_client = client

            @functools.wraps(function)
            async def call_later(*args: Any, **kwargs: Any) -> Any:
                decision = await async_client.check_all([checked(*args, **kwargs)])
                if not decision.allowed:
                    raise Denied(decision)
                return await function(*args, **kwargs)

            return cast(F, call_later)
        if not isinstance(client, Client):
            raise TypeError(f"{function.__name__} is no coroutine function: use a Client")
        sync_client = client

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            decision = sync_client.check_all([checked(*args, **kwargs)])
            if not decision.allowed:
                raise Denied(decision)
            return function(*args, **kwargs)

        return cast(F, call)

    return decorate


def _check_of(
    function: Callable[..., Any], rule: str, key: Optional[KeyOf], cost: CostOf
) -> Callable[..., Check]:
    signature = inspect.signature(function)
    if isinstance(key, str) and key not in signature.parameters:
        raise ValueError(f"{function.__name__} has no parameter {key!r}")

    def check_of(*args: Any, **kwargs: Any) -> Check:
        if isinstance(key, str):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            found: Optional[Key] = str(bound.arguments[key])
        else:
            found = None if key is None else key(*args, **kwargs)
        return Check(rule, found, cost(*args, **kwargs) if callable(cost) else cost)

    return check_of
