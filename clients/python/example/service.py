"""A FastAPI service with three limits. Run `tidegate serve`, then `uvicorn service:app`."""

import os
from contextlib import asynccontextmanager
from typing import AsyncIterator, Dict, Optional

from fastapi import Depends, FastAPI, Header
from fastapi.responses import Response
from starlette.requests import HTTPConnection, Request

from tidegate import AsyncClient, Denied
from tidegate.starlette import RateLimit, RateLimited, RateLimitMiddleware
from tidegate.starlette import problem_response, rate_limited

client = AsyncClient(
    os.environ.get("TIDEGATE_URL", "http://127.0.0.1:8080"),
    token=os.environ.get("TIDEGATE_TOKEN"),
    on_no_answer="local",
    limits={"api": ["10/s burst 20"], "login": ["sliding-log 5/m"]},
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await client.close()


def api_key(connection: HTTPConnection) -> Optional[str]:
    return connection.headers.get("x-api-key", "anonymous")


async def denied(request: Request, error: Exception) -> Response:
    assert isinstance(error, Denied)
    return problem_response(error.decision)


app = FastAPI(lifespan=lifespan)
app.add_middleware(RateLimitMiddleware, client=client, rule="api", key=api_key)
app.add_exception_handler(RateLimited, rate_limited)
app.add_exception_handler(Denied, denied)


@app.post("/login", dependencies=[Depends(RateLimit(client, "login"))])
async def login() -> Dict[str, str]:
    return {"status": "signed in"}


async def ask_model(prompt: str) -> Dict[str, int]:
    """Stands for the call to a provider, and returns its usage."""
    return {"prompt_tokens": len(prompt), "completion_tokens": 2 * len(prompt)}


@app.post("/chat")
async def chat(prompt: str, x_user: str = Header("anonymous")) -> Dict[str, int]:
    async with client.reserve("budget", x_user, cost=1000) as reservation:
        usage = await ask_model(prompt)
        await reservation.commit(cost=usage["prompt_tokens"] + usage["completion_tokens"])
    return usage
