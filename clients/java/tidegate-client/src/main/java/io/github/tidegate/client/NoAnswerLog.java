package io.github.tidegate.client;

import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;

/** Warns of decisions without the server: the first at once, then at most once in 10 s. */
final class NoAnswerLog {
    static final long INTERVAL_NANOS = 10_000_000_000L;

    private final Consumer<String> log;
    private final AtomicLong unreported = new AtomicLong();
    private final AtomicLong nextReport;

    /** Writes to {@code log}; time is that of {@link System#nanoTime}. */
    NoAnswerLog(Consumer<String> log, long now) {
        this.log = log;
        this.nextReport = new AtomicLong(now);
    }

    /** Counts a decision; the cause is null if an open circuit decided at once. */
    void decided(long now, TidegateException cause) {
        unreported.incrementAndGet();
        long due = nextReport.get();
        if (now - due >= 0 && nextReport.compareAndSet(due, now + INTERVAL_NANOS)) {
            log.accept(unreported.getAndSet(0) + " decisions without the server: "
                + (cause == null ? "the circuit is open" : cause.getMessage()));
        }
    }
}
