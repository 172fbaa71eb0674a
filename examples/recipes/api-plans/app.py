"""An API on port 9000 with a plan for each customer."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.request import Request, urlopen

# Stands for your table of API keys: customer and plan.
API_KEYS = {
    "key-1": ("acme", "free"),
    "key-2": ("globex", "pro"),
    "key-3": ("initech", "enterprise"),
}


def check(plan, customer):
    """Returns status and headers of the check."""
    body = json.dumps({"rule": "api", "key": customer, "plan": plan}).encode()
    request = Request("http://127.0.0.1:8080/v1/check", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=2) as response:
            return response.status, response.headers
    except HTTPError as error:
        if error.code != 429:
            raise
        return error.code, error.headers


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        known = API_KEYS.get(self.headers.get("X-API-Key"))
        if known is None:
            return self.respond(401, {})
        customer, plan = known
        try:
            status, headers = check(plan, customer)
        except OSError:
            # Without Tidegate the API is served without limits.
            status, headers = 200, {}
        # What the customer may still send, and when to retry.
        names = ("RateLimit-Policy", "RateLimit", "Retry-After")
        self.respond(status, {name: headers[name] for name in names if name in headers})

    def respond(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", 9000), Handler).serve_forever()
