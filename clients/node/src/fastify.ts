import type { Tidegate } from "./client.js";
import type { MiddlewareOptions } from "./express.js";
import { problem, responseHeaders } from "./types.js";

interface FastifyReply {
    code(status: number): this;
    headers(values: Record<string, string>): this;
    type(contentType: string): this;
    send(body: string): this;
}

/**
 * A Fastify hook that checks a rule: `app.addHook("onRequest", ..)`, or `onRequest` of one route. A
 * denied request gets 429 with problem+json; an error of the client goes to the error handler.
 */
export function rateLimit<Request extends { ip: string }>(
    client: Tidegate,
    options: MiddlewareOptions<Request>,
): (request: Request, reply: FastifyReply) => Promise<unknown> {
    const keyOf = options.key ?? ((request: Request) => request.ip);
    const cost = options.cost === undefined ? {} : { cost: options.cost };
    return async (request, reply) => {
        const decision = await client.check(options.rule, await keyOf(request), cost);
        reply.headers(responseHeaders(decision));
        if (decision.allowed) return undefined;
        const body = JSON.stringify(problem(decision));
        return reply.code(429).type("application/problem+json").send(body);
    };
}
