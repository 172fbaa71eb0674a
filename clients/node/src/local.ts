import { LocalRule } from "./rule.js";
import type { RuleFields } from "./rule.js";
import type { Check, Decision, Verdict } from "./types.js";

/** When to retry after a denial whose end is not known: the server may be back then. */
export const RETRY_MS = 1000;
export const SLOTS = 4096;
export const MAX_LIMITS = 256;

const NOTATION = /^(?:[a-z-]+ )?(\d+)\/(\d*)([a-z]+)((?: \S+)*)$/;
const DAY = 864e5;
const UNITS_MS: Record<string, number> = {
    us: 0.001, ms: 1, s: 1e3, sec: 1e3, m: 6e4, min: 6e4, minute: 6e4, h: 36e5, hour: 36e5,
    d: DAY, day: DAY, w: 7 * DAY, week: 7 * DAY, month: 31 * DAY,
};

/**
 * The capacity of a limit and the milliseconds in which it recovers; null for a concurrency limit,
 * which has no such time.
 */
export function parseLimit(notation: string): { capacity: number; recoveryMs: number } | null {
    if (notation.startsWith("concurrency ")) return null;
    const [found, countText = "", number = "", unit = "", options = ""] =
        NOTATION.exec(notation.trim()) ?? [];
    const span = UNITS_MS[unit] ?? UNITS_MS[unit.length > 2 ? unit.slice(0, -1) : unit];
    if (found === undefined || span === undefined) {
        throw new TypeError(`"${notation}" is not a limit; write 5/min or sliding-log 5/1m`);
    }
    const count = Number(countText);
    const recoveryMs = span * Number(number || 1);
    const burst = / (?:burst|capacity) (\d+)/.exec(options)?.[1];
    if (burst === undefined || count === 0) return { capacity: count, recoveryMs };
    return { capacity: Number(burst), recoveryMs: (recoveryMs * Number(burst)) / count };
}

/** A token bucket for each slot of keys; a slot holds the time at which it is full again. */
class Share {
    readonly capacity: number;
    readonly interval: number;
    private fullAt: Float64Array | undefined;

    constructor(limit: number, recoveryMs: number, share: number) {
        this.capacity = limit === 0 ? 0 : Math.max(1, Math.floor(limit * share + 1e-9));
        this.interval = this.capacity === 0 ? 0 : recoveryMs / this.capacity;
    }

    verdict(name: string, policy: string, slot: number, cost: number, now: number): Verdict {
        const fullAt = Math.max(now, this.fullAt?.[slot] ?? now);
        const left = this.capacity === 0 ? 0 : this.capacity - (fullAt - now) / this.interval;
        const allowed = cost === 0 || left + 1e-9 >= cost;
        let retryAfterMs: number | null = 0;
        if (!allowed && this.capacity === 0) retryAfterMs = null;
        else if (!allowed && cost > this.capacity) retryAfterMs = RETRY_MS;
        else if (!allowed) retryAfterMs = Math.ceil((cost - left) * this.interval);
        const charged = allowed ? cost : 0;
        return {
            rule: name,
            policy,
            allowed,
            limit: this.capacity,
            remaining: Math.max(0, Math.floor(left - charged + 1e-9)),
            retryAfterMs,
            resetAfterMs: Math.ceil(fullAt - now + charged * this.interval),
        };
    }

    charge(slot: number, cost: number, now: number): void {
        this.fullAt ??= new Float64Array(SLOTS);
        this.fullAt[slot] = Math.max(now, this.fullAt[slot] ?? 0) + cost * this.interval;
    }
}

/** What a check costs under one limit. */
interface Charge {
    share: Share;
    slot: number;
    name: string;
    policy: string;
    cost: number;
}

/** What a check without a cost costs; by usage, only the server knows. */
export type MissingCost = "one" | "estimate" | "by usage";

/** The limits that are known, and what this process has used of its share of them. */
export class LocalShares {
    private rules: Map<string, LocalRule>;
    private readonly configured: Map<string, LocalRule>;
    private readonly shares = new Map<string, { rule: string; notation: string; share: Share }>();
    private readonly seed = Math.floor(Math.random() * 2 ** 32);

    constructor(
        private readonly share: number,
        configured: Record<string, readonly string[]>,
    ) {
        if (!(share > 0 && share <= 1)) {
            throw new RangeError(`localShare is ${share}; it is above 0 and at most 1`);
        }
        for (const notation of Object.values(configured).flat()) parseLimit(notation);
        const rules = Object.entries(configured);
        this.configured = new Map(rules.map(([name, limits]) => [name, new LocalRule({ limits })]));
        this.rules = this.configured;
    }

    get size(): number {
        return this.shares.size;
    }

    /** Takes over the rules of `GET /v1/rules`; unchanged limits keep their counts. */
    learn(rules: readonly RuleFields[]): void {
        const learned = rules.map((rule) => [rule.name, new LocalRule(rule)] as const);
        this.rules = new Map([...this.configured, ...learned]);
        for (const [at, { rule, notation }] of this.shares) {
            if (rule !== "" && !this.rules.get(rule)?.has(notation)) this.shares.delete(at);
        }
    }

    /** Charges every limit of every check, or none. `now` is in milliseconds. */
    decide(checks: readonly Check[], now: number, missing: MissingCost = "one"): Decision {
        const rows = checks.flatMap((check) => this.plan(check, missing));
        // Checks of one slot are judged by their sum, as all of them are charged.
        const totals = new Map<Share, Map<number, number>>();
        for (const row of rows) {
            if (!("share" in row)) continue;
            const slots = totals.get(row.share) ?? new Map<number, number>();
            totals.set(row.share, slots.set(row.slot, (slots.get(row.slot) ?? 0) + row.cost));
        }
        const verdicts = rows.map((row) => {
            if (!("share" in row)) return row;
            const { share, slot, name, policy } = row;
            return share.verdict(name, policy, slot, totals.get(share)!.get(slot)!, now);
        });
        if (verdicts.every((verdict) => verdict.allowed)) {
            for (const [share, slots] of totals) {
                for (const [slot, cost] of slots) share.charge(slot, cost, now);
            }
        }
        return decisionOf(checks[0]?.rule ?? "adhoc", verdicts);
    }

    /** What a check costs under each limit, or its verdict if that is known without counting. */
    private plan(check: Check, missing: MissingCost): (Charge | Verdict)[] {
        const name = check.rule ?? "adhoc";
        const without = (allowed: boolean, retryAfterMs: number | null): Verdict[] => {
            const rest = { limit: 0, remaining: 0, resetAfterMs: 0 };
            return [{ rule: name, policy: name, allowed, retryAfterMs, ...rest }];
        };
        const rule =
            check.rule === undefined
                ? new LocalRule({ limits: [check.limit ?? ""] })
                : this.rules.get(check.rule);
        if (rule === undefined) return without(check.cost === 0, RETRY_MS);
        const key = rule.keyOf(check.key);
        if (rule.denies(key)) return without(false, null);
        if (rule.exempts(key)) return [];
        const known = missing === "by usage" ? undefined : missing === "one" ? 1 : rule.estimate;
        const cost = check.cost ?? known;
        const shares = this.sharesOf(check.rule ?? "", rule.limitsOf(key));
        if (shares === null || cost === undefined) return without(cost === 0, RETRY_MS);
        const slot = this.slot(key.parts);
        return shares.map((share, i) => {
            const policy = shares.length === 1 ? name : `${name}.${i + 1}`;
            return { share, slot, name, policy, cost };
        });
    }

    /** The shares of limits, made at their first use; null if one cannot be counted. */
    private sharesOf(rule: string, notations: readonly string[]): Share[] | null {
        const shares: Share[] = [];
        for (const [i, notation] of notations.entries()) {
            const at = `${rule} ${i} ${notation}`;
            let found = this.shares.get(at);
            if (found === undefined) {
                const parsed = countable(notation);
                if (parsed === null || this.shares.size >= MAX_LIMITS) return null;
                const share = new Share(parsed.capacity, parsed.recoveryMs, this.share);
                found = { rule, notation, share };
                this.shares.set(at, found);
            }
            shares.push(found.share);
        }
        return shares;
    }

    /** FNV-1a from a random seed, so that callers cannot choose keys of one slot. */
    private slot(parts: readonly string[]): number {
        const text = JSON.stringify(parts);
        let hash = this.seed;
        for (let i = 0; i < text.length; i++) {
            hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
        }
        return ((hash ^ (hash >>> 15)) >>> 0) % SLOTS;
    }
}

/** The limit, or null if it cannot be counted here. */
function countable(notation: string): { capacity: number; recoveryMs: number } | null {
    try {
        return parseLimit(notation);
    } catch {
        return null;
    }
}

/** The most restrictive limit is reported: the longest wait, or the least remaining. */
function decisionOf(rule: string, verdicts: Verdict[]): Decision {
    const denied = verdicts.filter((verdict) => !verdict.allowed);
    const wait = (v: Verdict): number => v.retryAfterMs ?? Infinity;
    const isFirst = (a: Verdict, b: Verdict): boolean =>
        denied.length > 0
            ? wait(a) > wait(b)
            : a.remaining < b.remaining ||
              (a.remaining === b.remaining && a.resetAfterMs > b.resetAfterMs);
    const among = denied.length > 0 ? denied : verdicts;
    const [first, ...others] = among;
    const chosen = others.reduce((best, v) => (isFirst(v, best!) ? v : best), first);
    return {
        allowed: denied.length === 0,
        limit: chosen?.limit ?? 0,
        remaining: chosen?.remaining ?? 0,
        retryAfterMs: denied.length > 0 ? (chosen?.retryAfterMs ?? null) : 0,
        resetAfterMs: chosen?.resetAfterMs ?? 0,
        delayMs: 0,
        rule: chosen?.rule ?? rule,
        source: "local",
        never: denied.length > 0 && chosen?.retryAfterMs === null,
        rules: verdicts,
        headers: {},
    };
}
