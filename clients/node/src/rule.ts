import { isIP } from "node:net";

import type { Key } from "./types.js";

/** A rule as `GET /v1/rules` describes it: what the local share needs of it. */
export interface RuleFields {
    name: string;
    limits?: readonly string[];
    shadow?: boolean;
    key?: readonly string[];
    estimate?: number;
    deny?: readonly string[];
    allow?: readonly string[];
    overrides?: readonly { key: Key; limits: readonly string[]; until?: string }[];
}

/** A key as the server counts it: a client address in IPv6 by its /64. */
export interface CountedKey {
    parts: readonly string[];
    /** The bits of the client address in the key, if there is one. */
    client: string | undefined;
}

/** Limits, lists and overrides of one rule. A rule in shadow mode has none of them. */
export class LocalRule {
    readonly estimate: number;
    private readonly key: readonly string[];
    private readonly limits: readonly string[];
    private readonly deny: Entries;
    private readonly allow: Entries;
    private readonly overrides = new Map<string, { limits: readonly string[]; until: number }>();

    constructor(rule: Omit<RuleFields, "name">) {
        const enforced: Omit<RuleFields, "name"> = rule.shadow ? {} : rule;
        this.estimate = rule.estimate ?? 1;
        this.key = rule.key ?? [];
        this.limits = enforced.limits ?? [];
        this.deny = new Entries(enforced.deny ?? [], true);
        this.allow = new Entries(enforced.allow ?? [], false);
        for (const { key, limits, until } of enforced.overrides ?? []) {
            const ends = until === undefined ? Infinity : Date.parse(until);
            this.overrides.set(JSON.stringify(this.keyOf(key).parts), { limits, until: ends });
        }
    }

    /** Whether some key may have this limit. */
    has(notation: string): boolean {
        const all = [this.limits, ...[...this.overrides.values()].map(({ limits }) => limits)];
        return all.some((limits) => limits.includes(notation));
    }

    keyOf(key: Key | undefined): CountedKey {
        const given = key === undefined ? [] : typeof key === "string" ? [key] : key;
        let client = this.key.length === 0 && given.length === 1 ? bitsOf(given[0]!) : undefined;
        const parts = given.map((part, i) => {
            const bits = this.key[i] === "client_ip" ? bitsOf(part) : undefined;
            if (bits === undefined) return part;
            client ??= bits;
            return bits.slice(0, 64);
        });
        return { parts, client };
    }

    limitsOf({ parts }: CountedKey): readonly string[] {
        const found = this.overrides.get(JSON.stringify(parts));
        return found !== undefined && Date.now() < found.until ? found.limits : this.limits;
    }

    denies(key: CountedKey): boolean {
        return this.deny.has(key);
    }

    exempts(key: CountedKey): boolean {
        return this.allow.has(key);
    }
}

/**
 * An allow or deny list: networks match the client address, other entries a key of one part. A
 * single address on a deny list matches both.
 */
class Entries {
    private readonly keys = new Set<string>();
    private readonly networks: { width: number; prefix: string }[] = [];

    constructor(entries: readonly string[], isDeny: boolean) {
        for (const text of entries) {
            const network = networkOf(text);
            if (network !== undefined) this.networks.push(network);
            if (network === undefined || (isDeny && !text.includes("/"))) this.keys.add(text);
        }
    }

    has({ parts, client }: CountedKey): boolean {
        if (parts.length === 1 && this.keys.has(parts[0]!)) return true;
        if (client === undefined) return false;
        return this.networks.some((n) => n.width === client.length && client.startsWith(n.prefix));
    }
}

const MAPPED = "0".repeat(80) + "1".repeat(16);

/** An address as 32 or 128 binary digits; an IPv4 address in IPv6 as IPv4. */
function bitsOf(text: string): string | undefined {
    const digits = (value: number, width: number) => value.toString(2).padStart(width, "0");
    const version = text.includes("%") ? 0 : isIP(text);
    if (version === 0) return undefined;
    if (version === 4) return text.split(".").map((byte) => digits(Number(byte), 8)).join("");
    // The URL parser writes an address in groups of hexadecimal digits.
    const canonical = new URL(`http://[${text}]`).hostname.slice(1, -1);
    const [head = [], tail = []] = canonical
        .split("::")
        .map((half) => half.split(":").filter((group) => group !== ""));
    const groups = [...head, ...Array<string>(8 - head.length - tail.length).fill("0"), ...tail];
    const bits = groups.map((group) => digits(parseInt(group, 16), 16)).join("");
    return bits.startsWith(MAPPED) ? bits.slice(MAPPED.length) : bits;
}

function networkOf(text: string): { width: number; prefix: string } | undefined {
    const [host = "", length] = text.split("/");
    const bits = bitsOf(host);
    if (bits === undefined) return undefined;
    // The length of an IPv4 network that is written in IPv6 counts 96 bits more.
    const spare = bits.length === 32 && host.includes(":") ? MAPPED.length : 0;
    const prefix = length === undefined ? bits : bits.slice(0, Number(length) - spare);
    return { width: bits.length, prefix };
}
