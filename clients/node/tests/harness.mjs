// A real server and a real Redis for one test.
import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

export const CLIENTS = process.env.TIDEGATE_CLIENTS;
const BINARY = process.env.TIDEGATE_BIN ?? join(CLIENTS, "../target/debug/tidegate");

export async function waitUntil(condition, what, ms = 30_000) {
    const end = performance.now() + ms;
    while (!(await condition())) {
        if (performance.now() > end) throw new Error(`not within ${ms} ms: ${what}`);
        await sleep(10);
    }
}

async function kill(child) {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await exited;
}

class Redis {
    // A socket in a folder of its own needs no free port.
    folder = mkdtempSync(join(tmpdir(), "tidegate-"));
    path = join(this.folder, "redis.sock");
    url = `unix://${this.path}`;

    async start() {
        const options = ["--port", "0", "--unixsocket", this.path, "--dir", this.folder];
        const off = ["--save", "", "--appendonly", "no"];
        this.child = spawn("redis-server", [...options, ...off], { stdio: "ignore" });
        const answers = () =>
            new Promise((resolve) => {
                const socket = connect(this.path, () => socket.destroy() && resolve(true));
                socket.on("error", () => resolve(false));
            });
        await waitUntil(answers, "redis-server accepts connections");
    }

    stop() {
        return kill(this.child);
    }
}

/** `tidegate serve` with the policy of the cases, or with the sample policy. */
export class Server {
    address = "127.0.0.1:0";

    static async start({ store = "memory", token, policy = join(CLIENTS, "policy.yaml"), env } = {}) {
        const server = new Server();
        server.env = { ...process.env, ...env };
        if (token !== undefined) server.env.TIDEGATE_TOKEN = token;
        server.policy = policy;
        if (store === "redis") {
            server.redis = new Redis();
            await server.redis.start();
        }
        await server.start();
        return server;
    }

    get url() {
        return `http://${this.address}`;
    }

    async start() {
        const args = ["serve", "--http", this.address, "--resp", "127.0.0.1:0"];
        args.push("--grpc", "127.0.0.1:0");
        if (this.policy !== null) args.push("--config", this.policy);
        if (this.redis) args.push("--store", this.redis.url);
        const stdio = ["ignore", "pipe", "pipe"];
        this.child = spawn(BINARY, args, { env: this.env, stdio });
        let log = "";
        for (const stream of [this.child.stdout, this.child.stderr]) {
            stream.on("data", (data) => (log += data));
        }
        const listens = () => {
            if (this.child.exitCode !== null) throw new Error(log);
            const line = log.split("\n").find((text) => text.includes('"message":"listening"'));
            if (line !== undefined) this.address = JSON.parse(line).fields.http;
            return line !== undefined;
        };
        await waitUntil(listens, "the server listens");
    }

    kill() {
        return kill(this.child);
    }

    async freeze() {
        this.child.kill("SIGSTOP");
        const tasks = `/proc/${this.child.pid}/task`;
        const state = (task) => readFileSync(join(tasks, task, "stat"), "utf8").split(") ")[1][0];
        // Threads on other processors go on for a moment.
        const isFrozen = () => readdirSync(tasks).every((task) => state(task) === "T");
        await waitUntil(isFrozen, "all threads are stopped");
    }

    thaw() {
        this.child.kill("SIGCONT");
    }

    /** One `do` of a case. */
    async do(step) {
        const actions = {
            kill_server: () => this.kill(),
            start_server: () => this.start(),
            freeze_server: () => this.freeze(),
            thaw_server: () => this.thaw(),
            stop_store: () => this.redis.stop(),
            start_store: () => this.redis.start(),
            sleep: () => sleep(step.ms),
        };
        await actions[step.do]();
    }

    async close() {
        await this.kill();
        if (this.redis) {
            await this.redis.stop();
            rmSync(this.redis.folder, { recursive: true, force: true });
        }
    }
}
