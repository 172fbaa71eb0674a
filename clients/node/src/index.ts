export { Reservation, Tidegate } from "./client.js";
export type { Commit, Options, ReserveOptions } from "./client.js";
export { Denied, problem, responseHeaders, TidegateError } from "./types.js";
export type { Check, Decision, ErrorKind, Key, SettledRule, Settlement, Verdict } from "./types.js";
