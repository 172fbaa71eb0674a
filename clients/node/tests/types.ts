// Compiled, not run: the adapters fit the types of the frameworks.
import fastify from "fastify";
import { rateLimit as expressRateLimit } from "express-rate-limit";

import { Tidegate, type Decision, type Settlement } from "tidegate";
import { TidegateStore } from "tidegate/express-rate-limit";
import { rateLimit } from "tidegate/fastify";

const client = new Tidegate({ onNoAnswer: "deny", limits: { login: ["5/min"] } });
const app = fastify();
app.addHook("onRequest", rateLimit(client, { rule: "api", key: (request) => request.ip }));
expressRateLimit({ limit: 5, store: new TidegateStore(client, "login") });
export const decision: Promise<Decision> = client.check("login", ["tenant", "user"], { cost: 2 });
export const settled: Promise<Settlement> = client.using(
    [{ rule: "tokens", key: "ann" }],
    { model: "gpt-x", usage: { input: 700, output: 800 }, ttlMs: 120_000 },
    (reservation) => reservation.commit({ model: "gpt-x", usage: { input: 1, output: 2 } }),
);
// @ts-expect-error: there is no such setting
new Tidegate({ onNoAnswer: "maybe" });
