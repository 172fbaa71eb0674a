"""Reads a dashboard with the types that Grafana generates from its schema, writes it again, and
prints each field that was lost or changed: Grafana does not know it."""

import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard


def differences(ours, theirs, path):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            if name in theirs:
                yield from differences(value, theirs[name], f"{path}/{name}")
            else:
                yield f"{path}/{name}: unknown"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for nth, pair in enumerate(zip(ours, theirs)):
            yield from differences(*pair, f"{path}/{nth}")
    elif ours != theirs:
        yield f"{path}: {ours!r} became {theirs!r}"


with open(sys.argv[1]) as file:
    dashboard = json.load(file)
written = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
found = list(differences(dashboard, written, ""))
print(*found, sep="\n")
sys.exit(1 if found else 0)
