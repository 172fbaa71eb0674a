// The cases that all clients share.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Tidegate, TidegateError } from "tidegate";

import { CLIENTS, Server } from "./harness.mjs";

const { cases } = JSON.parse(readFileSync(join(CLIENTS, "cases.json"), "utf8"));

function matches(expected, found) {
    if (Array.isArray(expected)) {
        return expected.length === found.length && expected.every((e, i) => matches(e, found[i]));
    }
    if (expected === null || typeof expected !== "object") return expected === found;
    if ("from" in expected) return expected.from <= found && found <= expected.to && found !== null;
    return Object.entries(expected).every(([name, value]) => matches(value, found[name]));
}

/** The names of the table: `retry_after_ms` for `retryAfterMs`. */
function snakeCase(value) {
    if (Array.isArray(value)) return value.map(snakeCase);
    if (value === null || typeof value !== "object") return value;
    const name = (text) => text.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [name(k), snakeCase(v)]));
}

function pick(from, ...names) {
    return Object.fromEntries(names.filter((name) => name in from).map((n) => [n, from[n]]));
}

async function call(client, step, saved) {
    if (step.call === "load_limits") return client.loadLimits(30_000);
    if (step.call === "check" || step.call === "reserve") {
        const rows = step.checks ?? [step];
        const checks = rows.map((row) => pick(row, "rule", "limit", "key", "cost"));
        if (step.call === "check") return client.checkAll(checks, pick(step, "id"));
        const options = pick(step, "model", "usage");
        if ("ttl_ms" in step) options.ttlMs = step.ttl_ms;
        const reservation = await client.reserveAll(checks, options);
        saved[step.save] = reservation;
        const { id, decision, expiresInMs } = reservation;
        return { ...decision, reservation: id, expiresInMs };
    }
    const { id } = step.reservation;
    const reservation = id ? client.reservation(id) : saved[step.reservation];
    if (step.call === "cancel") return reservation.cancel();
    return reservation.commit(pick(step, "cost", "costs", "model", "usage"));
}

async function run(client, step, saved) {
    const end = performance.now() + 30_000;
    for (;;) {
        let result;
        let error;
        try {
            result = snakeCase((await call(client, step, saved)) ?? {});
        } catch (thrown) {
            error = thrown;
        }
        const isDone = !step.until || (result && matches(step.until, result));
        if (isDone || performance.now() > end) return { result, error };
        await sleep(50);
    }
}

for (const { name, server: options, client: settings, steps } of cases) {
    test(name, async () => {
        const server = await Server.start(options);
        const client = new Tidegate({
            url: server.url,
            deadlineMs: settings.deadline_ms ?? 5000,
            onNoAnswer: settings.on_no_answer,
            ...pick(settings, "token", "limits"),
            ...("local_share" in settings && { localShare: settings.local_share }),
        });
        const saved = {};
        try {
            for (const step of steps) {
                if (step.do) {
                    await server.do(step);
                    continue;
                }
                const { result, error } = await run(client, step, saved);
                const shown = `${JSON.stringify(step)}: ${JSON.stringify(result)} ${error}`;
                if (step.error) {
                    assert.ok(error instanceof TidegateError, shown);
                    const { kind, responseStatus: status, field } = error;
                    assert.ok(matches(step.error, { kind, status, field }), `${shown} ${kind}`);
                } else {
                    assert.equal(error, undefined, shown);
                    assert.ok(matches(step.expect ?? step.until ?? {}, result), shown);
                }
            }
        } finally {
            await server.close();
        }
    });
}
