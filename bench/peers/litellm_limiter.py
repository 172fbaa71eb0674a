"""Runs the limiter of LiteLLM's proxy, from PyPI, on traffic that reaches its worst case.

`bench/peers/run` installs the package and starts this.
"""

import asyncio
import os
from datetime import datetime, timedelta

os.environ["LITELLM_LOG"] = "ERROR"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from fastapi import HTTPException
from litellm.caching.caching import DualCache
from litellm.proxy._types import UserAPIKeyAuth
from litellm.proxy.hooks.parallel_request_limiter_v3 import PROXY_MaxParallelRequestsHandler_v3
from litellm.proxy.utils import InternalUsageCache

LIMIT = 100


class Clock:
    def __init__(self):
        self.now = datetime(2026, 1, 1)

    def __call__(self):
        return self.now


def new_limiter(clock):
    return PROXY_MaxParallelRequestsHandler_v3(
        internal_usage_cache=InternalUsageCache(DualCache()), time_provider=clock
    )


async def admitted(limiter, key, request=None):
    data = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], **(request or {})}
    try:
        await limiter.async_pre_call_hook(
            user_api_key_dict=key, cache=DualCache(), data=data, call_type="acompletion"
        )
        return 1
    except HTTPException as denied:
        assert denied.status_code == 429, denied
        return 0


async def window_boundary():
    """One request starts the window; 99 come at its end, and 100 as soon as it is over."""
    clock = Clock()
    limiter = new_limiter(clock)
    key = UserAPIKeyAuth(api_key="window", rpm_limit=LIMIT)
    await admitted(limiter, key)
    clock.now += timedelta(seconds=59.9)
    at_the_end = sum([await admitted(limiter, key) for _ in range(99)])
    clock.now += timedelta(seconds=0.2)
    return at_the_end + sum([await admitted(limiter, key) for _ in range(100)])


async def tokens(setting):
    """64 concurrent requests of 50 tokens each, at 100 tokens a minute; tokens admitted."""
    os.environ["LITELLM_TPM_TOKEN_RESERVATION_ENABLED"] = setting
    limiter = new_limiter(Clock())
    key = UserAPIKeyAuth(api_key="tokens", tpm_limit=LIMIT)
    requests = [admitted(limiter, key, {"max_tokens": 45}) for _ in range(64)]
    return 50 * sum(await asyncio.gather(*requests))


async def main():
    boundary = "requests a minute: 1, then 99 at 59.9 s and 100 at 60.1 s"
    concurrent = "tokens a minute: 64 concurrent requests of 50 tokens"
    print(f"| LiteLLM | {boundary}, within 0.2 s | {await window_boundary()} | {LIMIT} |")
    print(f"| LiteLLM, reservation (its default) | {concurrent} | {await tokens('true')} | {LIMIT} |")
    print(f"| LiteLLM, reservation disabled | {concurrent} | {await tokens('false')} | {LIMIT} |")


asyncio.run(main())
