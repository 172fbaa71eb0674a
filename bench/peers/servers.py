"""Sends traffic that reaches the worst case of rate limiters behind a network protocol.

    servers.py throttle NAME PORT     one request, a pause, then 300 at once, over RESP
    servers.py window NAME PORT       100 before and 100 after a full second, over HTTP

`throttle` is for redis-cell and Tidegate: 100 a second, a burst of 100.
`window` is for envoyproxy/ratelimit: the domain `peers`, 100 a second for each `key`.
"""

import http.client
import json
import socket
import sys
import time

LIMIT = 100


def throttle(name, port):
    worst, window = 0, 0.0
    for pause in range(0, 1500, 50):
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            replies = connection.makefile("rb")
            # One more than the first number may come at once.
            words = ["CL.THROTTLE", f"{pause}-{time.time()}", str(LIMIT - 1), str(LIMIT), "1"]
            request = f"*{len(words)}\r\n" + "".join(f"${len(w)}\r\n{w}\r\n" for w in words)
            connection.sendall(request.encode())
            read_throttle(replies)
            time.sleep(pause / 1000)
            start = time.monotonic()
            connection.sendall(request.encode() * 300)
            admitted = sum(read_throttle(replies) for _ in range(300))
            # What comes back during the burst is not counted against the limiter.
            took = time.monotonic() - start
            if admitted - LIMIT * took > worst:
                worst, window = admitted, took
    row(name, f"one request, a pause, then 300 within {window * 1000:.0f} ms", worst)


def read_throttle(replies):
    """1 if the request was admitted."""
    header = replies.readline()
    assert header == b"*5\r\n", header
    numbers = [int(replies.readline()[1:]) for _ in range(5)]
    return 1 - numbers[0]


def window(name, port):
    worst, span = 0, 0.0
    for attempt in range(5):
        entry = {"key": "key", "value": f"{attempt}-{time.time()}"}
        body = json.dumps({"domain": "peers", "descriptors": [{"entries": [entry]}]})
        connection = http.client.HTTPConnection("127.0.0.1", int(port))
        second = int(time.time()) + 2
        # A slow machine needs longer for the first hundred: the attempts begin ever earlier.
        time.sleep(second - 0.1 * (attempt + 1) - time.time())
        times = [at for at in (post(connection, body) for _ in range(LIMIT)) if at]
        time.sleep(max(0.0, second + 0.01 - time.time()))
        times += [at for at in (post(connection, body) for _ in range(LIMIT)) if at]
        if len(times) > worst:
            worst, span = len(times), times[-1] - times[0]
    row(name, f"100 before and 100 after a full second, within {span * 1000:.0f} ms", worst)


def post(connection, body):
    """The time, if the request was admitted."""
    connection.request("POST", "/json", body)
    response = connection.getresponse()
    response.read()
    assert response.status in (200, 429), response.status
    return time.time() if response.status == 200 else None


def row(name, traffic, admitted):
    print(f"| {name} | {traffic} | {admitted} | {LIMIT} |", flush=True)


{"throttle": throttle, "window": window}[sys.argv[1]](*sys.argv[2:])
