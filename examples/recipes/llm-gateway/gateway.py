"""A gateway in front of a model server: reserves before a call, streams it, commits its usage.

python3 gateway.py PORT TIDEGATE_URL MODEL_URL
"""

import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, TIDEGATE, MODEL = int(sys.argv[1]), sys.argv[2], sys.argv[3]
DEFAULT_OUTPUT = 800


def post(url, body, timeout=60):
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout)


def tidegate(call, body):
    with post(f"{TIDEGATE}/v1/{call}", body, timeout=5) as reply:
        return json.load(reply)


class Gateway(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = " ".join(message["content"] for message in request["messages"])
        output = request.setdefault("max_tokens", DEFAULT_OUTPUT)
        keys = {
            "org-spend": self.headers["x-org"],
            "team-tokens": self.headers["x-team"],
            "user-tokens": self.headers["x-user"],
            "user-requests": self.headers["x-user"],
        }
        reservation = {
            "model": request["model"],
            # About four characters are a token. max_tokens bounds the output.
            "usage": {"input": len(text) // 4 + 1, "output": output},
            "ttl_ms": 120_000,
            "checks": [{"rule": rule, "key": key} for rule, key in keys.items()],
        }
        try:
            reserved = tidegate("reserve", reservation)
        except urllib.error.HTTPError as denied:
            return self.refuse(denied)
        self.forward(request, reserved["reservation"])

    def refuse(self, denied):
        """A denial, in the form that clients of OpenAI expect."""
        reason = json.load(denied)
        error = {"message": reason.get("rule") or reason.get("detail"), "type": "rate_limit"}
        body = json.dumps({"error": error}).encode()
        self.send_response(denied.code)
        for name, value in denied.headers.items():
            if name.lower() == "retry-after" or name.lower().startswith("x-ratelimit-"):
                self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def forward(self, request, reservation):
        request |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            reply = post(f"{MODEL}/v1/chat/completions", request)
        except urllib.error.URLError:
            # The model was not reached: no token was used.
            tidegate("cancel", {"reservation": reservation})
            return self.send_error(502)
        # Without usage, for example because a side hung up, what was reserved is charged.
        settled = {"reservation": reservation}
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for line in reply:
                if b'"usage"' in line:
                    last = json.loads(line.removeprefix(b"data: "))
                    settled |= {"model": last["model"], "usage": last["usage"]}
                self.wfile.write(line)
        finally:
            tidegate("commit", settled)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", PORT), Gateway)
print(server.server_port, flush=True)
server.serve_forever()
