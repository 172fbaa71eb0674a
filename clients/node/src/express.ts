import type { Tidegate } from "./client.js";
import { problem, responseHeaders } from "./types.js";
import type { Key } from "./types.js";

interface ExpressResponse {
    status(code: number): this;
    setHeader(name: string, value: string): unknown;
    end(body: string): unknown;
}

export interface MiddlewareOptions<Request> {
    rule: string;
    /** Default: the address of the peer, as the framework reports it. */
    key?: (request: Request) => Key | undefined | Promise<Key | undefined>;
    /** Default: 1. */
    cost?: number;
}

/**
 * Express middleware that checks a rule for every request. A denied one gets 429 with problem+json;
 * an error of the client goes to `next`.
 */
export function rateLimit<Request extends { ip?: string | undefined }>(
    client: Tidegate,
    options: MiddlewareOptions<Request>,
): (request: Request, response: ExpressResponse, next: (error?: unknown) => void) => Promise<void> {
    const keyOf = options.key ?? ((request: Request) => request.ip);
    const cost = options.cost === undefined ? {} : { cost: options.cost };
    return async (request, response, next) => {
        try {
            const decision = await client.check(options.rule, await keyOf(request), cost);
            for (const [name, value] of Object.entries(responseHeaders(decision))) {
                response.setHeader(name, value);
            }
            if (!decision.allowed) {
                response.setHeader("content-type", "application/problem+json");
                response.status(429).end(JSON.stringify(problem(decision)));
                return;
            }
        } catch (error) {
            next(error);
            return;
        }
        next();
    };
}
