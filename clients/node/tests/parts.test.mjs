// Parts of the client that the shared cases do not reach.
import assert from "node:assert/strict";
import { createServer } from "node:net";
import test from "node:test";

import { Denied, Tidegate } from "tidegate";

import { LocalShares, MAX_LIMITS, parseLimit, SLOTS } from "../dist/local.js";
import { Server } from "./harness.mjs";

test("the notation gives capacity and recovery", () => {
    const expected = {
        "5/min": [5, 60e3],
        "10/30s": [10, 30e3],
        "100/s burst 20": [20, 200],
        "leaky-bucket 10/s capacity 30 queue": [30, 3e3],
        "fixed-window 1000/d tz Asia/Shanghai": [1000, 864e5],
        "sliding-window 240/1h precision 1m": [240, 36e5],
        "2/5days": [2, 5 * 864e5],
        "0/s burst 5": [0, 1e3],
    };
    for (const [text, [capacity, recoveryMs]] of Object.entries(expected)) {
        assert.deepEqual(parseLimit(text), { capacity, recoveryMs }, text);
    }
    assert.equal(parseLimit("concurrency 20 lease 30s"), null);
    for (const text of ["5", "5/fortnight", "-1/s", "1.5/s", ""]) {
        assert.throws(() => parseLimit(text), TypeError, text);
    }
});

test("a share recovers with time and never exceeds itself", () => {
    const shares = new LocalShares(0.5, { a: ["10/s"] });
    const allowed = [];
    for (let now = 0; now < 10_000; now += 7) {
        if (shares.decide([{ rule: "a", key: "k" }], now).allowed) allowed.push(now);
    }
    for (const start of allowed) {
        assert.ok(allowed.filter((at) => at >= start && at < start + 1000).length <= 10);
    }
    assert.ok(allowed.length >= 50);
});

test("the state is bounded", () => {
    const shares = new LocalShares(1, { a: ["1/h"] });
    let admitted = 0;
    for (let i = 0; i < 3 * SLOTS; i++) {
        if (shares.decide([{ rule: "a", key: `user-${i}` }], 0).allowed) admitted++;
    }
    assert.ok(admitted <= SLOTS && admitted > SLOTS / 2, `${admitted}`);
    let last;
    for (let i = 1; i < MAX_LIMITS + 10; i++) {
        last = shares.decide([{ limit: `5/${i}s`, key: "k" }], 0);
    }
    assert.deepEqual([last.allowed, shares.size], [false, MAX_LIMITS]);
});

test("rules in shadow mode never deny, and changed limits start anew", () => {
    const shares = new LocalShares(1, {});
    shares.learn([{ name: "s", limits: ["0/s"], shadow: true }]);
    assert.ok(shares.decide([{ rule: "s" }], 0).allowed);
    for (const [limit, expected] of [["1/h", true], ["1/h", false], ["2/h", true]]) {
        shares.learn([{ name: "r", limits: [limit] }]);
        assert.equal(shares.decide([{ rule: "r" }], 0).allowed, expected);
    }
});

test("a removed rule falls back to the settings", () => {
    const shares = new LocalShares(1, { a: ["5/h"] });
    const limits = () => ["a", "b"].map((rule) => shares.decide([{ rule }], 0).limit);
    shares.learn(["a", "b"].map((name) => ({ name, limits: ["7/h"] })));
    assert.deepEqual(limits(), [7, 7]);
    shares.learn([]);
    assert.deepEqual(limits(), [5, 0]);
});

test("lists compare addresses, and an override ends", () => {
    const rule = {
        name: "r",
        key: ["client_ip"],
        limits: ["9/h"],
        deny: ["203.0.113.0/24", "2001:db8::/32", "::ffff:198.51.100.0/120", "::9"],
        allow: ["10.0.0.0/8"],
        overrides: [
            { key: "192.0.2.1", limits: ["3/h"], until: "2020-01-01T00:00:00.5Z" },
            { key: "2001:aaaa::5", limits: ["3/h"], until: "2999-01-01T00:00:00Z" },
        ],
    };
    const shares = new LocalShares(1, {});
    shares.learn([rule]);
    const expected = {
        "203.0.113.7": [false, 0, true],
        "::ffff:203.0.113.7": [false, 0, true],
        "2001:DB8:1::1": [false, 0, true],
        "198.51.100.3": [false, 0, true],
        "0::9": [false, 0, true],
        "203.0.114.7": [true, 9, false],
        "no-address": [true, 9, false],
        "10.9.8.7": [true, 0, false],
        "192.0.2.1": [true, 9, false],
        // An IPv6 client is counted by its /64.
        "2001:aaaa::6": [true, 3, false],
        "2001:aaaa:0:1::6": [true, 9, false],
    };
    for (const [key, wanted] of Object.entries(expected)) {
        const { allowed, limit, never } = shares.decide([{ rule: "r", key }], 0);
        assert.deepEqual([allowed, limit, never], wanted, key);
    }
    assert.equal(shares.decide([{ rule: "r", key: "2001:aaaa::7" }], 0).remaining, 1);
});

test("a silent server is called by few", async () => {
    let accepted = 0;
    const listener = createServer(() => accepted++).listen(0, "127.0.0.1");
    await new Promise((resolve) => listener.once("listening", resolve));
    const url = `http://127.0.0.1:${listener.address().port}`;
    const client = new Tidegate({ url, deadlineMs: 50, onNoAnswer: "deny" });
    const warned = new Promise((resolve) => process.once("warning", resolve));
    for (let i = 0; i < 200; i++) {
        const { source, allowed } = await client.check("login", "k");
        assert.deepEqual([source, allowed], ["none", false]);
    }
    assert.match((await warned).message, /deadline exceeded; deny decides \(1\)$/);
    assert.ok(accepted >= 5 && accepted < 50, `${accepted} connections`);
    listener.close();
});

test("a restarted server decides, and calls in turn share a connection", async () => {
    const server = await Server.start();
    try {
        const client = new Tidegate({ url: server.url, deadlineMs: 5000, onNoAnswer: "deny" });
        for (let i = 0; i < 20; i++) await client.check("load", "k");
        const metrics = await (await fetch(`${server.url}/metrics`)).text();
        const open = Number(/tidegate_connections\{listener="http"\} (\d+)/.exec(metrics)[1]);
        assert.ok(open <= 3, `${open} connections`);
        await server.kill();
        await server.start();
        let decision = await client.check("load", "k");
        if (decision.source === "none") decision = await client.check("load", "k");
        assert.equal(decision.source, "memory");
    } finally {
        await server.close();
    }
});

test("a token loses its line end and cannot add a header", async () => {
    const sent = [];
    const send = async (url, { headers }) => {
        sent.push(headers["authorization"]);
        return new Response('{"rules":[]}');
    };
    for (const token of ["secret\r\n", "\n"]) {
        await new Tidegate({ token, fetch: send }).loadLimits();
    }
    assert.deepEqual(sent, ["Bearer secret", undefined]);
    for (const token of ["a\r\nx-forwarded-for: 10.0.0.1", "a b", "geheím", "a\0"]) {
        assert.throws(() => new Tidegate({ token }), TypeError, token);
    }
});

test("an invalid argument is an error of the caller, and does not open the circuit", async () => {
    let calls = 0;
    const send = async () => {
        calls++;
        return new Response('{"allowed":true,"rules":[]}');
    };
    const client = new Tidegate({ fetch: send, onNoAnswer: "allow" });
    const usage = { input: 1 };
    usage.self = usage;
    const wrong = { kind: "invalid" };
    for (let i = 0; i < 10; i++) {
        for (const cost of [-1, 1.5, NaN, 1n, "2"]) {
            await assert.rejects(client.check("r", "k", { cost }), { ...wrong, field: "cost" });
        }
        await assert.rejects(client.reserve("r", "k", { usage }), wrong);
        await assert.rejects(client.check("r", "k", { waitMs: NaN }), RangeError);
    }
    assert.equal(calls, 0);
    assert.equal((await client.check("r", "k")).source, undefined);
    assert.equal(calls, 1);
});

test("work that throws or commits nothing is cancelled, and a denial is thrown", async () => {
    const server = await Server.start();
    try {
        const client = new Tidegate({ url: server.url, deadlineMs: 5000 });
        const checks = [{ rule: "work", key: "a", cost: 900 }];
        const peek = async () => (await client.check("work", "a", { cost: 0 })).remaining;
        const work = async () => {
            assert.equal(await peek(), 100);
            await assert.rejects(client.using(checks, {}, async () => 1), Denied);
            throw new RangeError("the work failed");
        };
        await assert.rejects(client.using(checks, {}, work), RangeError);
        assert.equal(await peek(), 1000);
    } finally {
        await server.close();
    }
});
