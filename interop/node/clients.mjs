// Transactions of node-redis and ioredis against the RESP listener at the port given as argument.
import assert from "node:assert";
import Redis from "ioredis";
import { createClient } from "redis";

const port = Number(process.argv[2]);

// Two checks in one transaction, and one transaction that the server refuses. `run` sends the
// commands between MULTI and EXEC; `left` returns what remains of the key.
async function transactions(run, left, key) {
    const check = ["TG.CHECK", "login", key];
    await assert.rejects(run([check, ["NO.SUCH.COMMAND"]]));
    assert.equal(await left(key), 3);
    const decisions = await run([check, check]);
    assert.deepEqual(decisions.map((decision) => [decision[0], decision[2]]), [[1, 2], [1, 1]]);
    assert.equal(await left(key), 1);
}

for (const RESP of [2, 3]) {
    const client = createClient({ RESP, socket: { port } });
    await client.connect();
    const run = (commands) => {
        const multi = client.multi();
        commands.forEach((command) => multi.addCommand(command));
        return multi.exec();
    };
    const left = async (key) => (await client.sendCommand(["TG.PEEK", "login", key]))[2];
    await transactions(run, left, `node${RESP}`);
    await client.close();
}

const client = new Redis(port);
const run = async (commands) => {
    const multi = client.multi();
    commands.forEach(([name, ...words]) => multi.call(name, ...words));
    const replies = await multi.exec();
    return replies.map(([error, reply]) => { if (error) throw error; return reply; });
};
const left = async (key) => (await client.call("TG.PEEK", "login", key))[2];
await transactions(run, left, "ioredis");
await client.quit();
console.log("node-redis and ioredis");
