package io.github.tidegate.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * One or several checks that are charged all or none.
 *
 * @param checks at most 16 checks
 * @param id idempotency key: repeated calls with it are charged once; null for none
 * @param maxWait how long the server may wait for permits; the deadline is extended by it
 * @param ttl how long a reservation lasts; null for the server's default of a minute
 * @param model model of a call that is reserved by usage; null for none
 * @param usage expected usage of that call, such as {@code input} and {@code output} tokens, from
 *     which the server computes the cost of checks without one; null for none
 */
public record CheckRequest(List<Check> checks, String id, Duration maxWait, Duration ttl,
        String model, Map<String, Object> usage) {
    /**
     * Requires at least one check.
     *
     * @param checks at most 16 checks
     * @param id idempotency key, or null
     * @param maxWait how long the server may wait for permits
     * @param ttl how long a reservation lasts, or null
     * @param model model of a call that is reserved by usage, or null
     * @param usage expected usage of that call, or null
     */
    public CheckRequest {
        checks = List.copyOf(checks);
        if (checks.isEmpty()) {
            throw new IllegalArgumentException("at least one check is required");
        }
    }

    /**
     * A request of these checks.
     *
     * @param checks the checks
     * @return the request
     */
    public static CheckRequest of(Check... checks) {
        return new CheckRequest(List.of(checks), null, Duration.ZERO, null, null, null);
    }

    /**
     * With an idempotency key.
     *
     * @param id at most 64 bytes
     * @return the request
     */
    public CheckRequest id(String id) {
        return new CheckRequest(checks, id, maxWait, ttl, model, usage);
    }

    /**
     * Lets the server wait for permits instead of denying at once.
     *
     * @param wait at most a minute
     * @return the request
     */
    public CheckRequest waitUpTo(Duration wait) {
        return new CheckRequest(checks, id, wait, ttl, model, usage);
    }

    /**
     * Sets how long a reservation lasts.
     *
     * @param ttl at most an hour
     * @return the request
     */
    public CheckRequest ttl(Duration ttl) {
        return new CheckRequest(checks, id, maxWait, ttl, model, usage);
    }

    /**
     * Lets the server compute the cost of each check without one, by what its rule counts.
     *
     * @param model model in the price list of the policy
     * @param usage expected usage, for example {@code Map.of("input", 700, "output", 800)}
     * @return the request
     */
    public CheckRequest usage(String model, Map<String, ?> usage) {
        return new CheckRequest(checks, id, maxWait, ttl, model, Map.copyOf(usage));
    }

    /** The only check, if it can be sent as one RESP command. */
    Check single() {
        boolean plain = checks.size() == 1 && id == null && maxWait.isZero();
        return plain && checks.get(0).key().size() == 1 ? checks.get(0) : null;
    }

    String ruleNames() {
        return checks.size() == 1 ? checks.get(0).name() : "several";
    }

    byte[] toJson() {
        Map<String, Object> body = new LinkedHashMap<>();
        if (checks.size() == 1) {
            put(body, checks.get(0));
        } else {
            List<Object> list = new ArrayList<>();
            for (Check check : checks) {
                Map<String, Object> item = new LinkedHashMap<>();
                put(item, check);
                list.add(item);
            }
            body.put("checks", list);
        }
        if (id != null) {
            body.put("id", id);
        }
        if (!maxWait.isZero()) {
            body.put("wait_ms", maxWait.toMillis());
        }
        if (ttl != null) {
            body.put("ttl_ms", ttl.toMillis());
        }
        if (usage != null) {
            body.put("model", model);
            body.put("usage", usage);
        }
        return Json.write(body);
    }

    private static void put(Map<String, Object> body, Check check) {
        body.put(check.rule() == null ? "limit" : "rule",
            check.rule() == null ? check.limit() : check.rule());
        if (check.key().size() == 1) {
            body.put("key", check.key().get(0));
        } else if (!check.key().isEmpty()) {
            body.put("key", check.key());
        }
        if (check.hasCost()) {
            body.put("cost", check.cost());
        }
    }
}
