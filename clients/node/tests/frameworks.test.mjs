// Express, Fastify, express-rate-limit, the example, the README and the page.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import express from "express";
import { rateLimit as expressRateLimit } from "express-rate-limit";
import fastify from "fastify";
import { Tidegate } from "tidegate";
import { rateLimit as forExpress } from "tidegate/express";
import { MAX_UNCHARGED_KEYS, TidegateStore } from "tidegate/express-rate-limit";
import { rateLimit as forFastify } from "tidegate/fastify";

import { CLIENTS, Server } from "./harness.mjs";

const ADMIN = "the-admin-token-of-the-server";
const deadlineMs = 5000;
let server;

before(async () => (server = await Server.start({ env: { TIDEGATE_ADMIN_TOKEN: ADMIN } })));
after(() => server.close());

async function listen(app, work) {
    const listening = app.listen(0, "127.0.0.1");
    await new Promise((resolve) => listening.once("listening", resolve));
    try {
        await work(`http://127.0.0.1:${listening.address().port}/`);
    } finally {
        listening.closeAllConnections();
        await new Promise((resolve) => listening.close(resolve));
    }
}

/** The rule `login` allows two requests. */
async function assertLimited(get) {
    for (const remaining of ["1", "0"]) {
        const allowed = await get();
        assert.equal(allowed.status, 200);
        assert.equal(allowed.headers.get("x-ratelimit-remaining"), remaining);
    }
    const denied = await get();
    assert.equal(denied.status, 429);
    assert.match(denied.headers.get("content-type"), /^application\/problem\+json/);
    assert.ok(Number(denied.headers.get("retry-after")) > 3000);
    assert.equal(denied.headers.get("cache-control"), "no-store");
    assert.match(denied.headers.get("ratelimit"), /"login";r=0/);
    const body = await denied.json();
    assert.deepEqual(body["violated-policies"], ["login"]);
    assert.match(body.type, /#quota-exceeded$/);
}

test("Express middleware denies with problem+json and headers", async () => {
    const client = new Tidegate({ url: server.url, deadlineMs });
    const app = express();
    app.use(forExpress(client, { rule: "login", key: (request) => request.get("x-user") }));
    app.get("/", (request, response) => response.send("home"));
    app.use((error, request, response, next) => response.status(500).send(error.kind));
    await listen(app, async (url) => {
        await assertLimited(() => fetch(url, { headers: { "x-user": "express" } }));
        const missing = await fetch(url);
        assert.deepEqual([missing.status, await missing.text()], [500, "invalid"]);
    });
});

test("a Fastify hook denies with problem+json and headers", async () => {
    const client = new Tidegate({ url: server.url, deadlineMs });
    const app = fastify();
    app.addHook("onRequest", forFastify(client, { rule: "login", key: (r) => r.headers["x-user"] }));
    app.get("/", async () => "home");
    const get = async () => {
        const reply = await app.inject({ url: "/", headers: { "x-user": "fastify" } });
        const { statusCode: status, headers, body } = reply;
        return new Response(body, { status, headers: Object.entries(headers) });
    };
    await assertLimited(get);
    assert.equal((await app.inject("/")).statusCode, 500);
    await app.close();
});

test("express-rate-limit denies what the rule denies, and gives back and resets", async () => {
    const client = new Tidegate({ url: server.url, deadlineMs, token: ADMIN });
    const store = new TidegateStore(client, "login");
    const keyGenerator = (request) => request.get("x-user");
    const app = express();
    app.use(expressRateLimit({ limit: 2, store, keyGenerator, standardHeaders: "draft-6" }));
    app.get("/", (request, response) => response.send("home"));
    await listen(app, async (url) => {
        const get = () => fetch(url, { headers: { "x-user": "store" } });
        const statuses = async (count) => {
            const found = [];
            for (let i = 0; i < count; i++) found.push((await get()).status);
            return found;
        };
        assert.equal((await get()).headers.get("ratelimit-remaining"), "1");
        assert.deepEqual(await statuses(2), [200, 429]);
        assert.equal((await store.get("store")).totalHits, 2);
        await store.decrement("store");
        assert.deepEqual(await statuses(2), [200, 429]);
        await store.resetKey("store");
        assert.deepEqual(await statuses(3), [200, 200, 429]);
    });
});

test("a denied request is not refunded, and a failed one is", async () => {
    const client = new Tidegate({ url: server.url, deadlineMs });
    const store = new TidegateStore(client, "login");
    const app = express();
    const keyGenerator = (request) => request.get("x-user");
    app.use(expressRateLimit({ limit: 2, store, keyGenerator, skipFailedRequests: true }));
    app.get("/", (request, response) => response.sendStatus(Number(request.get("x-status"))));
    await listen(app, async (url) => {
        const get = async (user, status) => {
            const response = await fetch(url, { headers: { "x-user": user, "x-status": status } });
            await response.text();
            // The middleware calls `decrement` when the response has ended.
            await sleep(50);
            return response.status;
        };
        const found = [];
        for (let i = 0; i < 8; i++) found.push(await get("skip", "200"));
        assert.deepEqual(found, [200, 200, 429, 429, 429, 429, 429, 429]);
        for (let i = 0; i < 4; i++) assert.equal(await get("failing", "500"), 500);
        assert.equal((await client.check("login", "failing", { cost: 0 })).remaining, 2);
    });
});

test("what no server has charged is not refunded, and the number of keys is bounded", async () => {
    let refunds = 0;
    let source = "local";
    const client = {
        check: async () => ({ allowed: true, limit: 5, remaining: 4, resetAfterMs: 0, source }),
        refund: async () => {
            refunds++;
            throw new Error("no answer");
        },
    };
    const store = new TidegateStore(client, "login");
    store.init({ limit: 5, skipFailedRequests: true });
    for (let i = 0; i < MAX_UNCHARGED_KEYS + 5; i++) await store.increment(`key-${i}`);
    assert.equal(store.uncharged.size, MAX_UNCHARGED_KEYS);
    for (let i = 0; i < MAX_UNCHARGED_KEYS + 5; i++) await store.decrement(`key-${i}`);
    assert.deepEqual([refunds, store.uncharged.size], [0, 0]);
    source = "memory";
    await store.increment("a");
    // It warns instead of rejecting: nothing awaits it.
    await store.decrement("a");
    assert.equal(refunds, 1);
});

test("a limit that is a function does not overrule a denial", async () => {
    const client = new Tidegate({ url: server.url, deadlineMs });
    const app = express();
    const keyGenerator = (request) => request.get("x-user");
    const store = new TidegateStore(client, "login");
    app.use(expressRateLimit({ limit: () => 100, store, keyGenerator }));
    app.get("/", (request, response) => response.send("home"));
    await listen(app, async (url) => {
        const found = [];
        for (let i = 0; i < 4; i++) {
            found.push((await fetch(url, { headers: { "x-user": "function" } })).status);
        }
        assert.deepEqual(found, [200, 200, 429, 429]);
    });
});

/** Runs a program of the package until `isDone` says so of its output, or to its end. */
async function output(args, env, isDone, work = () => undefined) {
    const child = spawn(process.execPath, args, { env: { ...process.env, ...env } });
    let printed = "";
    const done = new Promise((resolve) => {
        const read = (data) => {
            printed += data;
            if (isDone(printed)) resolve();
        };
        child.stdout.on("data", read);
        child.stderr.on("data", read);
        child.once("exit", resolve);
    });
    await done;
    try {
        await work(printed);
    } finally {
        child.kill();
    }
    return printed;
}

test("the example service limits each route", async () => {
    const sample = await Server.start({ policy: null });
    const env = { TIDEGATE_URL: sample.url, PORT: "0", TIDEGATE_DEADLINE_MS: String(deadlineMs) };
    const isUp = (printed) => printed.includes("listening on ");
    try {
        await output(["example/service.mjs"], env, isUp, async (printed) => {
            const url = `http://127.0.0.1:${/listening on (\d+)/.exec(printed)[1]}`;
            const found = [];
            for (let i = 0; i < 6; i++) {
                found.push((await fetch(`${url}/login`, { method: "POST" })).status);
            }
            assert.deepEqual(found, [200, 200, 200, 200, 200, 429]);
            const chat = await fetch(`${url}/chat?prompt=hello`, { method: "POST" });
            assert.deepEqual(await chat.json(), { input: 5, output: 10 });
        });
    } finally {
        await sample.close();
    }
});

test("the README prints what it says", async () => {
    const sample = await Server.start({ policy: null });
    const text = readFileSync(join(CLIENTS, "node/README.md"), "utf8");
    const options = `url: "${sample.url}", deadlineMs: ${deadlineMs}`;
    const code = text.split("```js\n")[1].split("```")[0];
    assert.ok(code.includes('url: "http://127.0.0.1:8080"'));
    writeFileSync("tests/readme.mjs", code.replace('url: "http://127.0.0.1:8080"', options));
    try {
        const printed = await output(["tests/readme.mjs"], {}, () => false);
        const lines = printed.trim().split("\n");
        assert.deepEqual(lines.slice(0, 5), [4, 3, 2, 1, 0].map((n) => `allowed, ${n} left`));
        assert.match(lines[5], /^denied, retry in \d+ ms$/);
    } finally {
        await sample.close();
    }
});

test("the code of the page runs", async () => {
    const text = readFileSync(join(CLIENTS, "../docs/use/node.md"), "utf8");
    const blocks = text.split("```js\n").slice(1);
    assert.ok(blocks.length > 3);
    for (const [i, block] of blocks.entries()) {
        writeFileSync(`tests/page-${i}.mjs`, block.split("```")[0]);
        await import(`./page-${i}.mjs`);
    }
});
