import { Circuit } from "./circuit.js";
import { LocalShares, RETRY_MS } from "./local.js";
import { Denied, TidegateError } from "./types.js";
import type { Check, Decision, ErrorKind, Key, Settlement } from "./types.js";

const ATTEMPTS_TO_SETTLE = 3;
const LIMITS_MS = 60_000;
const LIMITS_RETRY_MS = 1000;
const REPORT_MS = 10_000;

export interface Options {
    /** Default: `http://127.0.0.1:8080`. */
    url?: string;
    token?: string;
    /** Milliseconds for a whole call: 150. The server gives its store 100. */
    deadlineMs?: number;
    /** What a check without an answer means. `local`, the default: a share of the limit. */
    onNoAnswer?: "allow" | "deny" | "local";
    /** Default: 0.5. */
    localShare?: number;
    /** Limits of rules before the first contact with the server: `{ login: ["5/min"] }`. */
    limits?: Record<string, readonly string[]>;
    /** Another `fetch`, for example one with client certificates. */
    fetch?: typeof fetch;
}

export interface ReserveOptions {
    /** How long the reservation lasts: 60,000. */
    ttlMs?: number;
    /** With `usage`, computes the costs of checks that have none. */
    model?: string;
    usage?: object;
    id?: string;
}

export interface Commit {
    cost?: number;
    costs?: Record<string, number>;
    model?: string;
    /** The object that the provider returned. */
    usage?: object;
}

type Json = Record<string, any>;
interface Answer {
    status: number;
    body: Json;
    headers: Headers;
}

/** Sends checks to a server; one client serves a whole process. */
export class Tidegate {
    private readonly url: string;
    private readonly deadlineMs: number;
    private readonly onNoAnswer: "allow" | "deny" | "local";
    private readonly headers: Record<string, string>;
    private readonly send: typeof fetch;
    private readonly circuit = new Circuit();
    private readonly shares: LocalShares;
    private limitsDueAt = 0;
    private reportAt = 0;
    private unreported = 0;

    constructor(options: Options = {}) {
        this.url = (options.url ?? "http://127.0.0.1:8080").replace(/\/+$/, "");
        if (!/^https?:$/.test(new URL(this.url).protocol)) {
            throw new TypeError(`${this.url}: a server is at http://host:port or https://host:port`);
        }
        this.deadlineMs = options.deadlineMs ?? 150;
        if (!(this.deadlineMs > 0)) throw new RangeError(`deadlineMs is ${this.deadlineMs}`);
        this.onNoAnswer = options.onNoAnswer ?? "local";
        if (!["allow", "deny", "local"].includes(this.onNoAnswer)) {
            throw new TypeError(`onNoAnswer is "${this.onNoAnswer}"; use allow, deny or local`);
        }
        this.send = options.fetch ?? fetch;
        this.shares = new LocalShares(options.localShare ?? 0.5, options.limits ?? {});
        this.headers = { "content-type": "application/json" };
        const token = checkedToken(options.token ?? "");
        if (token !== "") this.headers["authorization"] = `Bearer ${token}`;
    }

    /** Charges `cost` (1) of a rule; 0 peeks. It may wait `waitMs` for it. */
    check(
        rule: string,
        key?: Key,
        options: { cost?: number; id?: string; waitMs?: number } = {},
    ): Promise<Decision> {
        const { cost, ...rest } = options;
        return this.checkAll([checkOf(rule, key, cost)], rest);
    }

    /** Charges all of the checks or none. */
    async checkAll(
        checks: readonly Check[],
        options: { id?: string; waitMs?: number } = {},
    ): Promise<Decision> {
        const body = { ...bodyOf(checks), id: options.id, wait_ms: options.waitMs };
        return (await this.decide("/v1/check", checks, body, options.waitMs ?? 0)).decision;
    }

    /** Holds `cost` of a rule until it is settled, or until its time is over. */
    reserve(
        rule: string,
        key?: Key,
        options: ReserveOptions & { cost?: number } = {},
    ): Promise<Reservation> {
        const { cost, ...rest } = options;
        return this.reserveAll([checkOf(rule, key, cost)], rest);
    }

    /** Holds all of the checks or none. */
    async reserveAll(
        checks: readonly Check[],
        options: ReserveOptions = {},
    ): Promise<Reservation> {
        const { ttlMs, ...rest } = options;
        const body = { ...bodyOf(checks), ...rest, ttl_ms: ttlMs };
        const { decision, answer } = await this.decide("/v1/reserve", checks, body, 0);
        return new Reservation(this, answer["reservation"] ?? null, decision, answer["expires_in_ms"]);
    }

    /** Reserves, does the work, and cancels what it has not committed. Throws `Denied`. */
    async using<T>(
        checks: readonly Check[],
        options: ReserveOptions,
        work: (reservation: Reservation) => Promise<T>,
    ): Promise<T> {
        const reservation = await this.reserveAll(checks, options);
        if (reservation.decision?.allowed === false) throw new Denied(reservation.decision);
        try {
            return await work(reservation);
        } finally {
            // If it cannot be cancelled, it expires.
            if (!reservation.isSettled) await reservation.cancel().catch(() => undefined);
        }
    }

    /** A reservation that was made elsewhere, to settle it. */
    reservation(id: string): Reservation {
        return new Reservation(this, id, undefined, undefined);
    }

    /** Gives back `cost` (1) of a rule. */
    async refund(rule: string, key?: Key, cost?: number): Promise<void> {
        await this.require("POST", "/v1/refund", bodyOf([checkOf(rule, key, cost)]));
    }

    /** Forgets what a key has used; needs the admin token. */
    async reset(rule: string, key: Key): Promise<void> {
        const query = new URLSearchParams({ rule });
        for (const part of typeof key === "string" ? [key] : key) query.append("key", part);
        await this.require("DELETE", `/v1/keys?${query}`);
    }

    /** Reads the limits of all rules, for the local share; call it when a service starts. */
    async loadLimits(timeoutMs = 5000): Promise<void> {
        try {
            const { body } = await this.require("GET", "/v1/rules", undefined, timeoutMs);
            this.shares.learn(body["rules"]);
            this.limitsDueAt = performance.now() + LIMITS_MS;
        } catch (error) {
            this.limitsDueAt = performance.now() + LIMITS_RETRY_MS;
            throw error;
        }
    }

    /** For `Reservation`: repeating it is harmless, so it is tried again without an answer. */
    async settle(path: string, body: Json): Promise<Settlement> {
        for (let attempt = 1; ; attempt++) {
            try {
                const { body: settled } = await this.require("POST", path, body);
                const { late, overdrawn, rules } = settled;
                return { settled: settled["settled"], late, overdrawn, rules };
            } catch (error) {
                const isFinal = !(error instanceof TidegateError) || error.kind !== "no_answer";
                if (isFinal || attempt === ATTEMPTS_TO_SETTLE) throw error;
            }
        }
    }

    private async decide(
        path: string,
        checks: readonly Check[],
        body: Json,
        waitMs: number,
    ): Promise<{ decision: Decision; answer: Json }> {
        const without = (error: TidegateError | null) => {
            return { decision: this.withoutAnswer(path, checks, body, error), answer: {} };
        };
        if (!this.circuit.letsPass()) return without(null);
        try {
            const answer = await this.require("POST", path, body, this.deadlineMs + waitMs, true);
            const decision = decisionOf(answer);
            if (this.onNoAnswer === "local" && performance.now() >= this.limitsDueAt) {
                this.limitsDueAt = performance.now() + LIMITS_MS;
                this.loadLimits().catch(() => undefined);
            }
            return { decision, answer: answer.body };
        } catch (error) {
            if (!(error instanceof TidegateError) || error.kind !== "no_answer") throw error;
            return without(error);
        }
    }

    private withoutAnswer(
        path: string,
        checks: readonly Check[],
        body: Json,
        error: TidegateError | null,
    ): Decision {
        this.report(error);
        if (this.onNoAnswer === "local") {
            const reserved = body["usage"] === undefined ? "estimate" : "by usage";
            const missing = path === "/v1/reserve" ? reserved : "one";
            return this.shares.decide(checks, performance.now(), missing);
        }
        const allowed = this.onNoAnswer === "allow" || checks.every((check) => check.cost === 0);
        return {
            allowed, limit: 0, remaining: 0, retryAfterMs: allowed ? 0 : RETRY_MS, resetAfterMs: 0,
            delayMs: 0, rule: checks[0]?.rule ?? "adhoc", source: "none", never: false, rules: [],
            headers: {},
        };
    }

    /** Warns of decisions without the server: of the first at once, then once in a while. */
    private report(error: TidegateError | null): void {
        this.unreported++;
        if (error === null || performance.now() < this.reportAt) return;
        const decided = `${this.onNoAnswer} decides (${this.unreported})`;
        this.unreported = 0;
        this.reportAt = performance.now() + REPORT_MS;
        process.emitWarning(`no answer from ${this.url}: ${error.message}; ${decided}`, "Tidegate");
    }

    /** One request; rejects unless the status is 200, or 429 where that is a decision. */
    private async require(
        method: string,
        path: string,
        body?: Json,
        timeoutMs = this.deadlineMs,
        isDecision = false,
    ): Promise<Answer> {
        // Not in the try statement: an argument that is invalid says nothing of the server.
        const request: RequestInit = {
            method,
            headers: this.headers,
            ...(body !== undefined && { body: encode(body) }),
            redirect: "error",
            signal: AbortSignal.timeout(timeoutMs),
        };
        let status: number;
        let text: string;
        let headers: Headers;
        try {
            const response = await this.send(this.url + path, request);
            ({ status, headers } = response);
            text = await response.text();
        } catch (error) {
            this.circuit.record(false);
            throw new TidegateError("no_answer", reasonOf(error));
        }
        this.circuit.record(true);
        const parsed = parse(text);
        const isExpected = status === 200 || (status === 429 && isDecision);
        if (isExpected && parsed !== null) return { status, body: parsed, headers };
        const kind = isExpected ? "no_answer" : kindOf(path, status);
        const detail = parsed?.["detail"] ?? `status ${status}`;
        throw new TidegateError(kind, String(detail), status, parsed?.["field"] ?? null);
    }
}

/** Permits that are held until they are committed or cancelled. */
export class Reservation {
    isSettled = false;

    constructor(
        private readonly client: Tidegate,
        /** Null if it was denied, or if the server did not make it. */
        readonly id: string | null,
        readonly decision: Decision | undefined,
        readonly expiresInMs: number | undefined,
    ) {}

    /** Charges what the work came to; without any field, what was reserved. */
    async commit(commit: Commit = {}): Promise<Settlement> {
        return this.settle("/v1/commit", { ...commit });
    }

    /** Releases what was reserved. */
    async cancel(): Promise<Settlement> {
        return this.settle("/v1/cancel", {});
    }

    private async settle(path: string, body: Json): Promise<Settlement> {
        this.isSettled = true;
        if (this.id === null) return { settled: false, late: false, overdrawn: false, rules: [] };
        return this.client.settle(path, { ...body, reservation: this.id });
    }
}

function checkOf(rule: string, key: Key | undefined, cost: number | undefined): Check {
    return { rule, ...(key !== undefined && { key }), ...(cost !== undefined && { cost }) };
}

function bodyOf(checks: readonly Check[]): Json {
    if (checks.length === 0) throw new TypeError("a call has at least one check");
    for (const { cost } of checks) {
        if (cost === undefined || (Number.isSafeInteger(cost) && cost >= 0)) continue;
        const detail = `is ${cost}; it is a whole number from 0`;
        throw new TidegateError("invalid", detail, null, "cost");
    }
    return checks.length === 1 ? { ...checks[0] } : { checks };
}

/** The token without the end of the line of a file; empty for none. */
function checkedToken(token: string): string {
    const trimmed = token.trim();
    if (/^[!-~]*$/.test(trimmed)) return trimmed;
    throw new TypeError("the token has spaces, control characters or characters beyond ASCII");
}

function encode(body: Json): string {
    try {
        return JSON.stringify(body);
    } catch (error) {
        throw new TidegateError("invalid", error instanceof Error ? error.message : String(error));
    }
}

function parse(text: string): Json | null {
    try {
        const body: unknown = JSON.parse(text);
        return typeof body === "object" ? (body as Json | null) : null;
    } catch {
        return null;
    }
}

function kindOf(path: string, status: number): ErrorKind {
    if (status >= 500) return "no_answer";
    if (status === 401 || status === 403) return "unauthorized";
    if (status === 409) return "conflict";
    if (status !== 404) return "invalid";
    return /^\/v1\/(commit|cancel)$/.test(path) ? "unknown_reservation" : "unknown_rule";
}

function reasonOf(error: unknown): string {
    if (!(error instanceof Error)) return String(error);
    if (error.name === "TimeoutError") return "deadline exceeded";
    return error.cause instanceof Error ? error.cause.message || error.message : error.message;
}

function decisionOf({ body, headers, status }: Answer): Decision {
    if (typeof body["allowed"] !== "boolean" || !Array.isArray(body["rules"])) {
        throw new TidegateError("no_answer", "the response is not a decision", status);
    }
    const passedOn: Record<string, string> = {};
    headers.forEach((value, name) => {
        if (/^(x-)?ratelimit|^retry-after$/.test(name)) passedOn[name] = value;
    });
    return {
        allowed: body["allowed"],
        limit: body["limit"],
        remaining: body["remaining"],
        retryAfterMs: body["retry_after_ms"],
        resetAfterMs: body["reset_after_ms"],
        delayMs: body["delay_ms"],
        rule: body["rule"],
        source: body["source"],
        never: body["never"] ?? false,
        rules: body["rules"].map((row: Json) => ({
            rule: row["rule"],
            policy: row["policy"],
            allowed: row["allowed"],
            limit: row["limit"],
            remaining: row["remaining"],
            retryAfterMs: row["retry_after_ms"],
            resetAfterMs: row["reset_after_ms"],
        })),
        headers: passedOn,
    };
}
