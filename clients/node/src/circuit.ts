const FAILURES_TO_OPEN = 5;
const OPEN_MS = 1000;

/** Stops calling a server that has not answered for some calls in a row. */
export class Circuit {
    private failures = 0;
    private openUntil = 0;

    letsPass(): boolean {
        if (this.failures < FAILURES_TO_OPEN) return true;
        const now = performance.now();
        if (now < this.openUntil) return false;
        // This call tries the server; the others go on without it.
        this.openUntil = now + OPEN_MS;
        return true;
    }

    record(isAnswered: boolean): void {
        this.failures = isAnswered ? 0 : this.failures + 1;
        if (this.failures >= FAILURES_TO_OPEN) this.openUntil = performance.now() + OPEN_MS;
    }
}
