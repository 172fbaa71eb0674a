// An Express service with three limits. Run `tidegate serve`, then `node service.mjs`.
import express from "express";
import { Denied, problem, responseHeaders, Tidegate } from "tidegate";
import { rateLimit } from "tidegate/express";

const limiter = new Tidegate({
    url: process.env.TIDEGATE_URL ?? "http://127.0.0.1:8080",
    token: process.env.TIDEGATE_TOKEN,
    deadlineMs: Number(process.env.TIDEGATE_DEADLINE_MS ?? 150),
    onNoAnswer: "local",
    limits: { api: ["10/s burst 20"], login: ["sliding-log 5/m"] },
});

/** Stands for the call to a provider, and returns its usage. */
async function askModel(prompt) {
    return { input: prompt.length, output: 2 * prompt.length };
}

const app = express();
app.use(rateLimit(limiter, { rule: "api", key: (request) => request.get("x-api-key") ?? "" }));
app.post("/login", rateLimit(limiter, { rule: "login" }), (request, response) => {
    response.json({ status: "signed in" });
});
app.post("/chat", async (request, response) => {
    const checks = [{ rule: "budget", key: request.get("x-user") ?? "", cost: 1000 }];
    const usage = await limiter.using(checks, { ttlMs: 120_000 }, async (reservation) => {
        const used = await askModel(String(request.query.prompt));
        await reservation.commit({ cost: used.input + used.output });
        return used;
    });
    response.json(usage);
});
app.use((error, request, response, next) => {
    if (!(error instanceof Denied)) return next(error);
    response.status(429).set(responseHeaders(error.decision)).json(problem(error.decision));
});

const server = app.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => {
    console.log(`listening on ${server.address().port}`);
});
