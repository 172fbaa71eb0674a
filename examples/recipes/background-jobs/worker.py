"""Runs the jobs of a queue: worker.py FILE, with a line `JOB CUSTOMER` for each job."""

import heapq
import json
import sys
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def check(job, customer):
    """Returns 0 if the job may run now, or the seconds until it may."""
    # The id makes a retry free: a job whose worker died after the check is charged once.
    body = json.dumps({"rule": "email", "key": customer, "id": job}).encode()
    request = Request("http://127.0.0.1:8080/v1/check", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=2) as response:
            response.read()
            return 0
    except HTTPError as error:
        if error.code != 429:
            raise
        return json.load(error)["retry_after_ms"] / 1000


# Stands for your queue: jobs in the order in which they are due.
with open(sys.argv[1]) as lines:
    queue = [(0, number, *line.split()) for number, line in enumerate(lines)]
while queue:
    due, number, job, customer = heapq.heappop(queue)
    time.sleep(max(0, due - time.monotonic()))
    wait = check(job, customer)
    if wait > 0:
        # Other jobs run meanwhile: the worker does not block on one customer.
        heapq.heappush(queue, (time.monotonic() + wait, number, job, customer))
        print(f"{job} of {customer}: postponed by {wait:.0f} s")
    else:
        print(f"{job} of {customer}: sent")
