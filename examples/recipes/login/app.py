"""A login service on port 9000 that limits failed attempts, per account and per address."""

import hmac
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

# Stands for your table of users, which has hashes instead of passwords.
PASSWORDS = {"ann": "correct horse", "bob": "battery staple"}


def tidegate(call, body):
    """Returns status and body; an OSError if there is no decision."""
    headers = {"Content-Type": "application/json"}
    request = Request(f"http://127.0.0.1:8080/v1/{call}", json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=2) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        if error.code != 429:
            raise
        return error.code, json.load(error)


def login(address, account, password):
    """Returns an HTTP status, and the seconds until the next attempt if it is 429."""
    # One spelling of an account, so that "Ann" and "ann " do not get attempts of their own.
    account = account.strip().lower()
    # The attempt is charged to both rules or to none, before the password is looked at. So many
    # attempts at the same time do not exceed the limit either.
    status, decision = tidegate("reserve", {"checks": [
        {"rule": "login-account", "key": account},
        {"rule": "login-ip", "key": address},
    ]})
    if status == 429:
        return 429, -(-decision["retry_after_ms"] // 1000)
    expected = PASSWORDS.get(account, "")
    is_correct = expected != "" and hmac.compare_digest(expected.encode(), password.encode())
    # A successful attempt costs nothing, a failed one stays charged.
    call = "cancel" if is_correct else "commit"
    tidegate(call, {"reservation": decision["reservation"]})
    return (200 if is_correct else 401), None


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        form = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 4096)).decode()
        fields = {name: values[0] for name, values in parse_qs(form).items()}
        # Behind a proxy, use the address that the proxy reports, and only from the proxy.
        address = self.client_address[0]
        try:
            status, wait = login(address, fields.get("account", ""), fields.get("password", ""))
        except OSError:
            # Without Tidegate there is no login: guessing must not become free.
            status, wait = 503, None
        self.send_response(status)
        if wait is not None:
            self.send_header("Retry-After", str(wait))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", 9000), Handler).serve_forever()
