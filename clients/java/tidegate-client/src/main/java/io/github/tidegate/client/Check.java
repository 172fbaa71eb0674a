package io.github.tidegate.client;

import java.util.List;
import java.util.Objects;

/**
 * One limit to check: a rule of the policy, or an ad-hoc limit in the notation of Tidegate.
 *
 * @param rule name of the rule; null for an ad-hoc limit
 * @param limit ad-hoc limit such as {@code "5/min"}; null for a rule
 * @param key parts of the key; empty if the rule counts all requests together
 * @param cost permits to take; 0 peeks and charges nothing; -1, the default, lets the server
 *     take 1, or what the rule counts of the usage of a reservation
 */
public record Check(String rule, String limit, List<String> key, long cost) {
    /**
     * Requires a rule or a limit, not both.
     *
     * @param rule name of the rule, or null
     * @param limit ad-hoc limit, or null
     * @param key parts of the key
     * @param cost permits to take, or -1
     */
    public Check {
        if ((rule == null) == (limit == null)) {
            throw new IllegalArgumentException("name a rule or give a limit, not both");
        }
        if (cost < -1) {
            throw new IllegalArgumentException("cost is " + cost + "; it must not be negative");
        }
        key = List.copyOf(key);
    }

    /**
     * A check of a rule, at cost 1.
     *
     * @param rule name of the rule
     * @param key parts of the key, such as tenant and user
     * @return the check
     */
    public static Check rule(String rule, String... key) {
        return new Check(Objects.requireNonNull(rule), null, List.of(key), -1);
    }

    /**
     * A check of an ad-hoc limit, at cost 1.
     *
     * @param limit the limit, for example {@code "100/s burst 20"}
     * @param key parts of the key
     * @return the check
     */
    public static Check limit(String limit, String... key) {
        return new Check(null, Objects.requireNonNull(limit), List.of(key), -1);
    }

    /**
     * The same check at another cost.
     *
     * @param cost permits to take; 0 peeks
     * @return the check
     */
    public Check cost(long cost) {
        if (cost < 0) {
            throw new IllegalArgumentException("cost is " + cost + "; it must not be negative");
        }
        return new Check(rule, limit, key, cost);
    }

    boolean hasCost() {
        return cost >= 0;
    }

    /** The cost, or 1 without one. */
    long permits() {
        return hasCost() ? cost : 1;
    }

    /** The rule, or {@code adhoc}, as in headers of the server. */
    String name() {
        return rule == null ? "adhoc" : rule;
    }
}
