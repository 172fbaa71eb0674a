package io.github.tidegate.client;

import java.util.List;

/**
 * A share of one limit as token buckets in a table of fixed size. Keys of one slot are counted
 * together: with many keys a request may be denied too early, never allowed too late. Callers hold
 * a lock; time is that of {@link System#nanoTime}.
 */
final class LocalShare {
    static final int SLOTS = 4096;
    /** The wait of a cost that never fits. */
    static final long NEVER = Long.MAX_VALUE;
    /** Rounding errors of doubles, in permits. */
    private static final double EPSILON = 1e-9;

    private final long capacity;
    /** Nanoseconds in which a permit recovers. */
    private final double interval;
    /** When each slot is full again, relative to {@link #epoch}; null until the first charge. */
    private double[] fullAt;
    private final long epoch;

    LocalShare(LocalLimit limit, double share, long now) {
        // At least one permit, so that no key is locked out.
        capacity = limit.capacity() == 0 ? 0
            : Math.max(1, (long) Math.floor(limit.capacity() * share + EPSILON));
        interval = capacity == 0 ? 0 : limit.recoveryNanos() / capacity;
        epoch = now;
    }

    /** The slot of a key. */
    static int slot(List<String> key) {
        return Math.floorMod(key.hashCode() * 0x9E3779B9, SLOTS);
    }

    private double missing(int slot, long now) {
        return fullAt == null ? 0 : Math.max(0, fullAt[slot] - (now - epoch));
    }

    private double left(int slot, long now) {
        return capacity == 0 ? 0 : capacity - missing(slot, now) / interval;
    }

    /** Nanoseconds until the cost fits: 0 now, {@link #NEVER} if it is above the capacity. */
    long wait(int slot, long cost, long now) {
        double left = left(slot, now);
        if (cost == 0 || left + EPSILON >= cost) {
            return 0;
        }
        return cost > capacity ? NEVER : (long) Math.ceil((cost - left) * interval);
    }

    void charge(int slot, long cost, long now) {
        if (cost == 0) {
            return;
        }
        if (fullAt == null) {
            fullAt = new double[SLOTS];
        }
        fullAt[slot] = missing(slot, now) + (now - epoch) + cost * interval;
    }

    long capacity() {
        return capacity;
    }

    long remaining(int slot, long now) {
        return (long) Math.max(0, Math.floor(left(slot, now) + EPSILON));
    }

    /** Nanoseconds until the slot is full. */
    long reset(int slot, long now) {
        return (long) Math.ceil(missing(slot, now));
    }
}
