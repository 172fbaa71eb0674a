// The server is killed and restarted, then frozen for 5 s, while callers send checks. Times are
// goals: they are printed, and bounds only with TIDEGATE_TIMING=1.
import assert from "node:assert/strict";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Tidegate } from "tidegate";

import { Server, waitUntil } from "./harness.mjs";

const DEADLINE = 150;
const CALLERS = 16;
const PAUSE = 5;

function quantile(values, share) {
    const ordered = [...values].sort((a, b) => a - b);
    return ordered[Math.min(ordered.length - 1, Math.floor(share * ordered.length))];
}

class Load {
    isRunning = true;
    calls = [];
    local = {};
    timers = [];

    constructor(url) {
        this.client = new Tidegate({ url, onNoAnswer: "deny" });
        this.shares = new Tidegate({ url, onNoAnswer: "local" });
    }

    async repeat(work, pause) {
        while (this.isRunning) {
            const start = performance.now();
            await work(start);
            await sleep(pause);
        }
    }

    async run() {
        const call = async (start) => {
            const decision = await this.client.check("load", "k");
            this.calls.push({ start, end: performance.now(), ...decision });
        };
        const callLocally = async () => {
            for (const key of ["a", "b", "c"]) {
                const { source, allowed } = await this.shares.check("api", key);
                if (source === "local" && allowed) this.local[key] = (this.local[key] ?? 0) + 1;
            }
        };
        const timer = async (start) => {
            await sleep(DEADLINE);
            this.timers.push(performance.now() - start);
        };
        await this.shares.loadLimits();
        const callers = Array.from({ length: CALLERS }, () => this.repeat(call, PAUSE));
        await Promise.all([...callers, this.repeat(callLocally, PAUSE), this.repeat(timer, 0)]);
    }

    /** The server decides again, not only now and then. */
    async untilTheServerDecides() {
        const began = this.calls.length;
        const isByServer = (call) => call.source === "memory";
        const decides = () => this.calls.slice(began).filter(isByServer).length > 100;
        await waitUntil(decides, "the server decides again");
    }
}

function judge(load, frozen, thawed) {
    const byServer = load.calls.filter((call) => call.source === "memory");
    const without = load.calls.filter((call) => call.source === "none");
    assert.equal(byServer.length + without.length, load.calls.length);
    assert.ok(byServer.every((call) => call.allowed));
    assert.ok(without.every((call) => !call.allowed));
    const during = without.filter(({ start }) => start > frozen && start < thawed - 1000);
    assert.ok(during.length > 100);
    assert.ok(during.every((call) => call.end < thawed), "a call waited for the thaw");
    // Half of `10/h`, and a share does not recover a permit within this test.
    assert.deepEqual(load.local, { a: 5, b: 5, c: 5 });

    const waits = load.calls.map((call) => call.end - call.start);
    const [half, found] = [quantile(waits, 0.5), quantile(waits, 0.999)];
    const timer = quantile(load.timers, 0.999);
    console.log(
        `chaos: ${byServer.length} calls decided by the server, ${without.length} without it; ` +
            `wait p50 ${half.toFixed(1)} ms, p99.9 ${found.toFixed(1)} ms, longest ` +
            `${quantile(waits, 1).toFixed(1)} ms (goal p99.9 <= ${1.2 * DEADLINE} ms); bare ` +
            `timers of ${DEADLINE} ms: p99.9 ${timer.toFixed(1)} ms`,
    );
    if (found > Math.max(1.2 * DEADLINE, timer)) {
        console.log(`late: node client: p99.9 ${found.toFixed(1)} ms`);
        assert.notEqual(process.env.TIDEGATE_TIMING, "1");
    }
}

test("callers wait no longer than the deadline and follow the setting", async () => {
    const server = await Server.start();
    const load = new Load(server.url);
    const running = load.run();
    let frozen;
    let thawed;
    try {
        await load.untilTheServerDecides();
        await server.kill();
        await sleep(1500);
        await server.start();
        await load.untilTheServerDecides();
        await server.freeze();
        frozen = performance.now();
        await sleep(5000);
        thawed = performance.now();
        server.thaw();
        await load.untilTheServerDecides();
    } finally {
        load.isRunning = false;
        await running;
        await server.close();
    }
    judge(load, frozen, thawed);
});
