/** A string, or parts that are kept separate. */
export type Key = string | readonly string[];

/** One rule, or one ad-hoc limit, of a check or a reservation. */
export interface Check {
    rule?: string;
    limit?: string;
    key?: Key;
    /** Without it a check charges 1, and a reservation the estimate of its rule. */
    cost?: number;
}

/** The result of one limit; `policy` is its name in the `RateLimit` header. */
export interface Verdict {
    rule: string;
    policy: string;
    allowed: boolean;
    limit: number;
    remaining: number;
    retryAfterMs: number | null;
    resetAfterMs: number;
}

export interface Decision {
    allowed: boolean;
    limit: number;
    remaining: number;
    /** Null if it can never pass. */
    retryAfterMs: number | null;
    resetAfterMs: number;
    delayMs: number;
    rule: string;
    /** That of the server, `none` if `onNoAnswer` decided, `local` if the local share did. */
    source: string;
    never: boolean;
    rules: Verdict[];
    /** The rate limit headers of the response, to pass on. */
    headers: Record<string, string>;
}

/** What settling a reservation did to one limit. */
export interface SettledRule {
    rule: string;
    policy: string;
    reserved: number;
    charged: number;
    uncharged: number;
    limit: number;
    remaining: number;
}

/** Not `settled` if the server had not made the reservation. */
export interface Settlement {
    settled: boolean;
    late: boolean;
    overdrawn: boolean;
    rules: SettledRule[];
}

export type ErrorKind =
    | "invalid"
    | "unauthorized"
    | "unknown_rule"
    | "unknown_reservation"
    | "conflict"
    | "no_answer"
    | "denied";

/** A call that has no decision. */
export class TidegateError extends Error {
    override readonly name: string = "TidegateError";

    constructor(
        readonly kind: ErrorKind,
        detail: string,
        /** Not `status`: frameworks would respond to their caller with it. */
        readonly responseStatus: number | null = null,
        readonly field: string | null = null,
    ) {
        super(field === null ? detail : `${field}: ${detail}`);
    }
}

/** Thrown by `using` and by adapters that cannot respond themselves. */
export class Denied extends TidegateError {
    override readonly name = "Denied";
    /** What frameworks respond with if they handle the error themselves. */
    readonly status = 429;

    constructor(readonly decision: Decision) {
        const wait = decision.retryAfterMs;
        const when = wait === null ? "never passes" : `retry in ${wait} ms`;
        super("denied", `denied by ${decision.rule}: ${when}`, 429);
    }
}

/** The body of a 429, for `application/problem+json`. */
export function problem(decision: Decision): Record<string, unknown> {
    const byServer = !["none", "local", "fallback"].includes(decision.source);
    const violated = decision.rules.filter((v) => !v.allowed).map((v) => v.policy);
    const kind = byServer ? "quota-exceeded" : "temporary-reduced-capacity";
    return {
        type: `https://iana.org/assignments/http-problem-types#${kind}`,
        title: byServer
            ? "Request cannot be satisfied as assigned quota has been exceeded"
            : "Request cannot be satisfied due to temporary server capacity constraints",
        status: 429,
        ...(violated.length > 0 && { "violated-policies": violated }),
    };
}

/** The headers of a response to the caller, with `Retry-After` if it is denied. */
export function responseHeaders(decision: Decision): Record<string, string> {
    const headers = { ...decision.headers };
    if (!decision.allowed) {
        headers["cache-control"] = "no-store";
        if (decision.retryAfterMs !== null) {
            headers["retry-after"] = String(Math.ceil(decision.retryAfterMs / 1000));
        }
    }
    return headers;
}
