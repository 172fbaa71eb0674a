import type { ClientRateLimitInfo, Options, Store } from "express-rate-limit";

import type { Tidegate } from "./client.js";
import type { Decision } from "./types.js";

export const MAX_UNCHARGED_KEYS = 10_000;
const WARN_MS = 10_000;
/** Where decisions come from that charge nothing that a refund would give back. */
const CHARGE_NOTHING = ["none", "local", "fallback", "policy"];

/**
 * A store for express-rate-limit: the rule decides, and the middleware responds. `limit` of the
 * middleware should be that of the rule, as its headers show it.
 */
export class TidegateStore implements Store {
    /** Other processes count in the same place. */
    readonly localKeys = false;
    private limit: number | undefined;
    private skipsFailed = false;
    private skipsSuccessful = false;
    /** Increments by key that charged nothing, which `decrement` must not refund. */
    private readonly uncharged = new Map<string, number>();
    /** The same of all keys beyond `MAX_UNCHARGED_KEYS`. */
    private unchargedOthers = 0;
    private warnAt = 0;

    constructor(
        private readonly client: Tidegate,
        private readonly rule: string,
    ) {}

    init(options: Options): void {
        if (typeof options.limit === "number") this.limit = options.limit;
        this.skipsFailed = options.skipFailedRequests;
        this.skipsSuccessful = options.skipSuccessfulRequests;
    }

    async increment(key: string): Promise<ClientRateLimitInfo> {
        const decision = await this.client.check(this.rule, key);
        const isCharged = decision.allowed && !CHARGE_NOTHING.includes(decision.source);
        // A denied request has failed, and so skipSuccessfulRequests alone does not give it back.
        const mayDecrement = this.skipsFailed || (this.skipsSuccessful && decision.allowed);
        if (mayDecrement && !isCharged) this.addUncharged(key);
        return this.infoOf(decision, 1);
    }

    async get(key: string): Promise<ClientRateLimitInfo> {
        return this.infoOf(await this.client.check(this.rule, key, { cost: 0 }), 0);
    }

    /** Gives back one charged increment. It never rejects: the middleware does not await it. */
    async decrement(key: string): Promise<void> {
        if (this.takeUncharged(key)) return;
        try {
            await this.client.refund(this.rule, key);
        } catch (error) {
            if (performance.now() < this.warnAt) return;
            this.warnAt = performance.now() + WARN_MS;
            const message = `a request of "${this.rule}" is not refunded: ${error}`;
            process.emitWarning(message, "Tidegate");
        }
    }

    /** Needs the admin token. */
    async resetKey(key: string): Promise<void> {
        await this.client.reset(this.rule, key);
    }

    private addUncharged(key: string): void {
        const count = this.uncharged.get(key);
        const fits = count !== undefined || this.uncharged.size < MAX_UNCHARGED_KEYS;
        if (fits) this.uncharged.set(key, (count ?? 0) + 1);
        else this.unchargedOthers++;
    }

    private takeUncharged(key: string): boolean {
        const count = this.uncharged.get(key) ?? 0;
        if (count > 1) this.uncharged.set(key, count - 1);
        else if (count === 1) this.uncharged.delete(key);
        else if (this.unchargedOthers > 0) this.unchargedOthers--;
        else return false;
        return true;
    }

    private infoOf(decision: Decision, cost: number): ClientRateLimitInfo {
        const used = Math.max(cost, decision.limit - decision.remaining);
        const limit = this.limit ?? (decision.limit || used);
        const wait = decision.allowed ? decision.resetAfterMs : (decision.retryAfterMs ?? undefined);
        return {
            // The middleware denies what is above its limit, and only that.
            totalHits: decision.allowed ? Math.min(used, limit) : Number.MAX_SAFE_INTEGER,
            resetTime: wait === undefined ? undefined : new Date(Date.now() + wait),
        };
    }
}
