"""The decorator, FastAPI, Starlette, Django, the example and the README."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import os
import re
import sys
import unittest
from pathlib import Path
from typing import Any, AsyncIterator, Optional

import django
from django.conf import settings
from fastapi import Depends, FastAPI
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient

from tidegate import AsyncClient, Client, Denied, InvalidRequest, rate_limit
from tidegate.starlette import RateLimit, RateLimited, RateLimitMiddleware, rate_limited

from harness import CLIENTS, Server

HERE = Path(__file__).resolve().parents[1]
DEADLINE = 5.0

settings.configure(DEBUG=False, ALLOWED_HOSTS=["*"], SECRET_KEY="test", TIDEGATE={})
django.setup()

from django.http import HttpResponse  # noqa: E402
from django.test import RequestFactory  # noqa: E402

from tidegate.django import RateLimitMiddleware as DjangoMiddleware  # noqa: E402


def user(connection: HTTPConnection) -> Optional[str]:
    return connection.headers.get("x-user")


def closing(client: AsyncClient) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await client.close()

    return lifespan


class Frameworks(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.close()

    def test_the_decorator_denies_by_the_named_parameter(self) -> None:
        with Client(self.server.url, deadline=DEADLINE) as client:

            @rate_limit(client, "login", key="name")
            def greet(greeting: str, name: str = "default") -> str:
                return f"{greeting} {name}"

            self.assertEqual([greet("hi", "deco") for _ in range(2)], ["hi deco"] * 2)
            with self.assertRaises(Denied) as raised:
                greet("hi", name="deco")
            self.assertEqual(raised.exception.decision.rule, "login")
            self.assertEqual(greet("hi"), "hi default")

    def test_the_decorator_awaits_coroutine_functions(self) -> None:
        async def run() -> None:
            async with AsyncClient(self.server.url, deadline=DEADLINE) as client:

                @rate_limit(client, "login", key=lambda n: f"n{n}", cost=lambda n: n)
                async def double(n: int) -> int:
                    return 2 * n

                self.assertEqual(await double(2), 4)
                with self.assertRaises(Denied):
                    await double(2)

        asyncio.run(run())

    def test_the_decorator_refuses_the_wrong_client_and_unknown_parameters(self) -> None:
        async def later() -> None: ...

        with self.assertRaises(TypeError):
            rate_limit(Client(self.server.url), "login")(later)
        with self.assertRaises(ValueError):
            rate_limit(Client(self.server.url), "login", key="nope")(lambda name: name)

    def test_a_dependency_denies_with_problem_json_and_headers(self) -> None:
        client = AsyncClient(self.server.url, deadline=DEADLINE)
        app = FastAPI(lifespan=closing(client))
        app.add_exception_handler(RateLimited, rate_limited)

        @app.get("/", dependencies=[Depends(RateLimit(client, "login", user))])
        async def home() -> str:
            return "home"

        with TestClient(app) as http:
            self.assert_limited(lambda: http.get("/", headers={"x-user": "dependency"}))
            with self.assertRaises(InvalidRequest):
                http.get("/")

    def test_middleware_denies_with_problem_json_and_headers(self) -> None:
        client = AsyncClient(self.server.url, deadline=DEADLINE)
        app = FastAPI(lifespan=closing(client))
        app.add_middleware(RateLimitMiddleware, client=client, rule="login", key=user)

        @app.get("/")
        async def home() -> str:
            return "home"

        with TestClient(app) as http:
            self.assert_limited(lambda: http.get("/", headers={"x-user": "middleware"}))

    def assert_limited(self, get: Any) -> None:
        """The rule `login` allows two requests."""
        for remaining in ("1", "0"):
            allowed = get()
            self.assertEqual((allowed.status_code, allowed.json()), (200, "home"))
            self.assertEqual(allowed.headers["x-ratelimit-remaining"], remaining)
        denied = get()
        self.assertEqual(denied.status_code, 429)
        self.assertEqual(denied.headers["content-type"], "application/problem+json")
        self.assertGreater(int(denied.headers["retry-after"]), 3000)
        self.assertEqual(denied.headers["cache-control"], "no-store")
        self.assertIn('"login";r=0', denied.headers["ratelimit"])
        self.assertEqual(denied.json()["violated-policies"], ["login"])
        self.assertTrue(denied.json()["type"].endswith("#quota-exceeded"))

    def test_django_middleware_denies_in_threads_and_in_asyncio(self) -> None:
        request = RequestFactory().get("/", HTTP_X_USER="wsgi")
        with Client(self.server.url, deadline=DEADLINE) as client:
            settings.TIDEGATE = {"client": client, "rule": "login", "key": django_user}
            wsgi: Any = DjangoMiddleware(lambda request: HttpResponse("home"))
            self.assertEqual([wsgi(request).status_code for _ in range(3)], [200, 200, 429])
            denied = wsgi(request)
            self.assertEqual(denied["Content-Type"], "application/problem+json")
            self.assertGreater(int(denied["Retry-After"]), 3000)

        async def run() -> None:
            async with AsyncClient(self.server.url, deadline=DEADLINE) as client:
                key = "test_frameworks.django_user"
                settings.TIDEGATE = {"client": client, "rule": "login", "key": key}
                request = RequestFactory().get("/", HTTP_X_USER="asgi")
                asgi: Any = DjangoMiddleware(home)
                found = [(await asgi(request)).status_code for _ in range(3)]
                self.assertEqual(found, [200, 200, 429])

        asyncio.run(run())


def django_user(request: Any) -> str:
    found: str = request.headers["x-user"]
    return found


async def home(request: Any) -> Any:
    return HttpResponse("home")


class Documentation(unittest.TestCase):
    def test_the_example_service_limits_each_route(self) -> None:
        with Server(config=None) as server:
            os.environ["TIDEGATE_URL"] = server.url
            sys.path.insert(0, str(HERE / "example"))
            service = importlib.import_module("service")
            service.client._core.deadline = DEADLINE
            with TestClient(service.app) as http:
                found = [http.post("/login").status_code for _ in range(6)]
                self.assertEqual(found, [200] * 5 + [429])
                chat = http.post("/chat?prompt=hello", headers={"x-user": "ann"})
                self.assertEqual(chat.json(), {"prompt_tokens": 5, "completion_tokens": 10})

    def test_the_packages_have_the_version_of_the_server(self) -> None:
        def version(path: str, pattern: str) -> str:
            found = re.search(pattern, (CLIENTS / path).read_text(), re.MULTILINE)
            assert found is not None, path
            return found.group(1)

        server = version("../Cargo.toml", r'^version = "(.+?)"')
        for path, pattern in {
            "python/pyproject.toml": r'^version = "(.+?)"',
            "python/src/tidegate/__init__.py": r'^__version__ = "(.+?)"',
            "node/package.json": r'^  "version": "(.+?)"',
            "go/doc.go": r'^const Version = "(.+?)"',
        }.items():
            self.assertEqual(version(path, pattern), server, path)

    def test_the_readme_prints_what_it_says(self) -> None:
        text = (HERE / "README.md").read_text()
        code = text.split("```python\n")[1].split("```")[0] + "limiter.close()\n"
        with Server(config=None) as server, contextlib.redirect_stdout(io.StringIO()) as printed:
            options = f'Client("{server.url}", deadline={DEADLINE},'
            exec(code.replace('Client("http://127.0.0.1:8080",', options), {})
        lines = printed.getvalue().splitlines()
        self.assertEqual(lines[:5], [f"allowed, {left} left" for left in (4, 3, 2, 1, 0)])
        self.assertTrue(lines[5].startswith("denied, retry in "))

    def test_the_code_of_the_page_runs(self) -> None:
        blocks = (CLIENTS.parent / "docs/use/python.md").read_text().split("```python\n")[1:]
        self.assertGreater(len(blocks), 4)
        for block in blocks:
            exec(block.split("```")[0], {})


if __name__ == "__main__":
    unittest.main()
