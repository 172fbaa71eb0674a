"""Creates a report while it holds a concurrency slot: report.py CUSTOMER SECONDS"""

import json
import sys
import threading
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

LEASE_MS = 30_000


def tidegate(call, **body):
    headers = {"Content-Type": "application/json"}
    request = Request(f"http://127.0.0.1:8080/v1/{call}", json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=2) as response:
            return json.load(response)
    except HTTPError as error:
        if error.code != 429:
            raise
        return json.load(error)


class Slot:
    """A concurrency slot, renewed until the end of the block."""

    def __init__(self, customer):
        decision = tidegate("reserve", rule="reports", key=customer, ttl_ms=LEASE_MS)
        self.id = decision.get("reservation")
        self.retry_after_ms = decision["retry_after_ms"]

    def __enter__(self):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.renew)
        self.thread.start()

    def renew(self):
        # Twice within a lease, so that one renewal may fail.
        while not self.ended.wait(LEASE_MS / 3_000):
            try:
                tidegate("renew", reservation=self.id, ttl_ms=LEASE_MS)
            except OSError as error:
                print(f"not renewed: {error}", file=sys.stderr)

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        tidegate("cancel", reservation=self.id)


customer, seconds = sys.argv[1], float(sys.argv[2])
slot = Slot(customer)
if slot.id is None:
    sys.exit(f"{customer} has too many reports in progress; retry in {slot.retry_after_ms} ms")
with slot:
    time.sleep(seconds)  # stands for the work
print(f"report of {customer} done")
