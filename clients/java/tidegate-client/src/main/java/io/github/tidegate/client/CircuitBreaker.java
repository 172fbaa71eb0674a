package io.github.tidegate.client;

import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Lets callers decide at once while the server gives no answers, instead of waiting for the
 * deadline each. While the circuit is open, one call in each interval is sent as a probe.
 */
final class CircuitBreaker {
    static final int FAILURES_TO_OPEN = 5;
    static final long PROBE_NANOS = 1_000_000_000;

    private final AtomicInteger failures = new AtomicInteger();
    private final AtomicLong nextProbe = new AtomicLong();
    private final Runnable opened;

    /** Runs {@code opened} when the circuit opens and after each failed probe. */
    CircuitBreaker(Runnable opened) {
        this.opened = opened;
    }

    /** Whether a call may be sent now. */
    boolean permits(long now) {
        if (failures.get() < FAILURES_TO_OPEN) {
            return true;
        }
        long due = nextProbe.get();
        return now - due >= 0 && nextProbe.compareAndSet(due, now + PROBE_NANOS);
    }

    boolean open() {
        return failures.get() >= FAILURES_TO_OPEN;
    }

    void answered() {
        // A read is cheaper than a write to a cache line that all callers share.
        if (failures.get() != 0) {
            failures.set(0);
        }
    }

    void failed(long now) {
        int count = failures.updateAndGet(n -> Math.min(n + 1, FAILURES_TO_OPEN + 1));
        if (count == FAILURES_TO_OPEN) {
            nextProbe.set(now + PROBE_NANOS);
        }
        if (count >= FAILURES_TO_OPEN) {
            opened.run();
        }
    }
}
