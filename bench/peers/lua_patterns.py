"""Runs patterns of hand-written limiters on a real Redis, and prints where each fails.

    lua_patterns.py PORT

docs/zh-CN/migrate-from-lua.md explains them. The scripts are short forms of what is common.
"""

import socket
import sys
import time


class Redis:
    def __init__(self, port):
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.replies = self.connection.makefile("rb")

    def call(self, *words):
        words = [str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%b\r\n" % (len(w), w) for w in words]
        self.connection.sendall(b"".join(parts))
        return self.read()

    def read(self):
        line = self.replies.readline()
        kind, text = line[:1], line[1:-2].decode()
        if kind == b"*":
            return [self.read() for _ in range(int(text))]
        if kind == b"$":
            return None if text == "-1" else self.replies.read(int(text) + 2)[:-2].decode()
        return int(text) if kind == b":" else text

    def eval(self, script, key, *args):
        return self.call("EVAL", script, 1, key, *args)


# One sorted set for each user. The member is the id of the user and not of the request.
LOG = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1] - 60000)
if redis.call('ZCARD', KEYS[1]) >= 5 then return 0 end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
return 1
"""

# A counter whose expiry is set again by every request.
RENEWED = """
if tonumber(redis.call('GET', KEYS[1]) or '0') >= 10 then return 0 end
redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], 1000)
return 1
"""

# A counter whose window begins with the first request.
FIRST_HIT = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], 1000) end
return count <= 10 and 1 or 0
"""

# A token bucket: rate, capacity, the time of the caller in seconds, cost.
BUCKET = """
local rate, capacity, now, cost = unpack(ARGV)
local tokens = tonumber(redis.call('GET', KEYS[1]) or capacity)
local last = tonumber(redis.call('GET', KEYS[1] .. ':time') or 0)
tokens = math.min(capacity, tokens + math.max(0, now - last) * rate)
local allowed = tokens >= tonumber(cost)
if allowed then tokens = tokens - cost end
local ttl = math.floor(capacity / rate * 2)
redis.call('SETEX', KEYS[1], ttl, tokens)
redis.call('SETEX', KEYS[1] .. ':time', ttl, now)
local wait = allowed and 0 or math.ceil((cost - tokens) / rate * 1000)
return {allowed and 1 or 0, wait}
"""


def row(pattern, traffic, result, expected):
    print(f"| {pattern} | {traffic} | {result} | {expected} |", flush=True)


def main():
    redis, other = Redis(int(sys.argv[1])), Redis(int(sys.argv[1]))
    redis.call("FLUSHALL")
    print("| pattern | traffic | result | expected |")
    print("|---|---|---|---|")

    admitted = sum(redis.eval(LOG, "log", 1000 + n, "user-42") for n in range(100))
    row("sorted set, the user as member", "100 requests at 5/60s", f"{admitted} admitted", 5)

    denied = 0
    for _ in range(30):
        denied += 1 - redis.eval(RENEWED, "renewed")
        time.sleep(0.125)
    row("counter, expiry renewed", "8 a second at 10/s, for 4 s", f"{denied} denied", 0)

    redis.eval(FIRST_HIT, "first")
    time.sleep(0.9)
    start = time.monotonic()
    admitted = sum(redis.eval(FIRST_HIT, "first") for _ in range(9))
    time.sleep(0.11)
    admitted += sum(redis.eval(FIRST_HIT, "first") for _ in range(10))
    span = (time.monotonic() - start) * 1000
    traffic = f"1 request, then 9 and 10 around the end, within {span:.0f} ms, at 10/s"
    row("counter, window from the first hit", traffic, f"{admitted} admitted", 10)

    # Both read before either writes, as two processes do.
    admitted = 0
    for _ in range(6):
        counts = [int(caller.call("GET", "plain") or 0) for caller in (redis, other)]
        for caller, count in zip((redis, other), counts):
            if not count > 10:
                caller.call("INCR", "plain")
                admitted += 1
    row("GET, then INCR, `> 10`", "2 callers at 10", f"{admitted} admitted", 10)

    # The clocks of two callers are 10 s apart; both send 20 requests at one instant.
    admitted = 0
    for _ in range(20):
        for now in (1000, 1010):
            admitted += redis.eval(BUCKET, "skewed", 1, 20, now, 1)[0]
    row("bucket, clock of the caller", "40 requests at once at 1/s burst 20", f"{admitted} admitted", 20)

    error = redis.eval(BUCKET, "small", 10, 4, 1000, 1)
    row("bucket, SETEX with 2 * capacity / rate", "10/s burst 4", error.split(" script")[0], "admitted")

    waits = []
    now = 1000.0
    for _ in range(3):
        _, wait = redis.eval(BUCKET, "large", 10, 20, now, 25)
        waits.append(f"{wait} ms")
        now += wait / 1000
    row("bucket, cost above capacity", "cost 25 at 10/s burst 20, each retry on time",
        f"denied, retry in {', '.join(waits)}", "an error")


main()
