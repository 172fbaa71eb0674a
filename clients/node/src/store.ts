import type { ClientRateLimitInfo, Options, Store } from "express-rate-limit";

import type { Tidegate } from "./client.js";

/**
 * A store for express-rate-limit: the rule decides, and the middleware responds. `limit` of the
 * middleware should be that of the rule, as its headers show it.
 */
export class TidegateStore implements Store {
    /** Other processes count in the same place. */
    readonly localKeys = false;
    private limit: number | undefined;

    constructor(
        private readonly client: Tidegate,
        private readonly rule: string,
    ) {}

    init(options: Options): void {
        if (typeof options.limit === "number") this.limit = options.limit;
    }

    async increment(key: string): Promise<ClientRateLimitInfo> {
        return this.hits(key, 1);
    }

    async get(key: string): Promise<ClientRateLimitInfo> {
        return this.hits(key, 0);
    }

    async decrement(key: string): Promise<void> {
        await this.client.refund(this.rule, key);
    }

    /** Needs the admin token. */
    async resetKey(key: string): Promise<void> {
        await this.client.reset(this.rule, key);
    }

    private async hits(key: string, cost: number): Promise<ClientRateLimitInfo> {
        const decision = await this.client.check(this.rule, key, { cost });
        const limit = this.limit ?? decision.limit;
        const used = Math.max(cost, decision.limit - decision.remaining);
        const wait = decision.allowed ? decision.resetAfterMs : (decision.retryAfterMs ?? undefined);
        return {
            // The middleware denies what is above its limit, and only that.
            totalHits: decision.allowed ? Math.min(used, limit) : limit + 1,
            resetTime: wait === undefined ? undefined : new Date(Date.now() + wait),
        };
    }
}
