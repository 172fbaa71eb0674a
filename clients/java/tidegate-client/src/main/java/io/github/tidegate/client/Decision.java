package io.github.tidegate.client;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * The result of a check, from the server or, without an answer, from this client.
 *
 * @param allowed whether the request may proceed
 * @param never whether the cost can never fit, so that a retry is pointless
 * @param limit size of the most restrictive limit; 0 if it is unknown, and -1 or 0 if none applies
 * @param remaining permits left under it
 * @param retryAfter when a denied request fits; empty if it is allowed or never fits
 * @param resetAfter time until the limit is fully recovered
 * @param delay how long an allowed request has to wait for its turn in a queue
 * @param rule rule of the most restrictive limit
 * @param source what decided: a store of the server such as {@code memory} or {@code redis}, the
 *     server's {@code fallback}, {@code server} if forward auth does not say which;
 *     without an answer {@code none} (allow or deny) or {@code local} (a share of the limit)
 * @param limits each limit; empty over RESP and without an answer
 * @param headers {@code RateLimit}, {@code Retry-After} and related headers for a response
 */
public record Decision(boolean allowed, boolean never, long limit, long remaining,
        Optional<Duration> retryAfter, Duration resetAfter, Duration delay, String rule,
        String source, List<LimitDecision> limits, Map<String, String> headers) {
    /** The {@link #source} of a decision without an answer, by {@code ALLOW} or {@code DENY}. */
    public static final String NONE = "none";
    /** The {@link #source} of a decision without an answer, by a local share of the limit. */
    public static final String LOCAL = "local";

    /**
     * Whether the server decided.
     *
     * @return false if the server gave no answer and {@link OnNoAnswer} decided
     */
    public boolean answered() {
        return !source.equals(NONE) && !source.equals(LOCAL);
    }

    /**
     * Throws if the request was denied.
     *
     * @return this decision
     * @throws RateLimitedException if it was denied
     */
    public Decision orThrow() {
        if (!allowed) {
            throw new RateLimitedException(this);
        }
        return this;
    }

    /**
     * The names of the limits that denied the request, as in problem details.
     *
     * @return policies such as {@code login.1}; empty if it was allowed
     */
    public List<String> violatedPolicies() {
        if (allowed) {
            return List.of();
        }
        List<String> names = limits.stream().filter(limit -> !limit.allowed())
            .map(LimitDecision::policy).toList();
        return names.isEmpty() && !rule.isEmpty() ? List.of(rule) : names;
    }

    static Decision of(Map<String, Object> json, Map<String, String> headers) {
        boolean allowed = Boolean.TRUE.equals(json.get("allowed"));
        List<LimitDecision> limits =
            Json.objects(json, "rules").stream().map(LimitDecision::of).toList();
        return new Decision(allowed, Boolean.TRUE.equals(json.get("never")),
            Json.number(json, "limit"), Json.number(json, "remaining"),
            retryAfter(allowed, json.get("retry_after_ms")),
            Duration.ofMillis(Json.number(json, "reset_after_ms")),
            Duration.ofMillis(Json.number(json, "delay_ms")), Json.text(json, "rule"),
            Json.text(json, "source"), limits, headers);
    }

    /** A response to forward auth, which describes the decision in headers alone. */
    static Decision ofAuthorize(HttpTransport.Reply reply) {
        boolean allowed = reply.status() == 200;
        Map<String, String> headers = reply.rateLimitHeaders();
        String wait = headers.get("Retry-After");
        Optional<Duration> retryAfter =
            wait == null ? Optional.empty() : Optional.of(Duration.ofSeconds(Long.parseLong(wait)));
        boolean fallback = false;
        List<LimitDecision> denied = List.of();
        if (!allowed) {
            Map<String, Object> problem = reply.json();
            fallback = Json.text(problem, "type").endsWith("#temporary-reduced-capacity");
            List<?> names = problem.get("violated-policies") instanceof List<?> l ? l : List.of();
            denied = names.stream().map(name -> new LimitDecision(ruleOf((String) name),
                (String) name, false, -1, 0, retryAfter, Duration.ZERO)).toList();
        }
        return new Decision(allowed, !allowed && wait == null,
            header(headers, "X-RateLimit-Limit", -1), header(headers, "X-RateLimit-Remaining", -1),
            retryAfter, Duration.ofSeconds(header(headers, "X-RateLimit-Reset", 0)), Duration.ZERO,
            denied.isEmpty() ? "" : denied.get(0).rule(), fallback ? "fallback" : "server", denied,
            headers);
    }

    private static String ruleOf(String policy) {
        return policy.replaceFirst("(#\\d+|\\.\\d+)$", "");
    }

    private static long header(Map<String, String> headers, String name, long missing) {
        String value = headers.get(name);
        return value == null ? missing : Long.parseLong(value);
    }

    /** The eight elements of a RESP reply, with headers computed from them. */
    static Decision of(List<?> reply) {
        long retryMs = (Long) reply.get(3);
        return compute((Long) reply.get(0) == 1, retryMs < 0, (Long) reply.get(1),
            (Long) reply.get(2), Duration.ofMillis(Math.max(retryMs, 0)),
            Duration.ofMillis((Long) reply.get(4)), Duration.ofMillis((Long) reply.get(5)),
            (String) reply.get(6), (String) reply.get(7));
    }

    /** A decision whose headers are computed: the server sent none. */
    static Decision compute(boolean allowed, boolean never, long limit, long remaining,
            Duration retryAfter, Duration resetAfter, Duration delay, String rule, String source) {
        Map<String, String> headers = new LinkedHashMap<>();
        Duration until = allowed ? resetAfter : retryAfter;
        if (limit > 0) {
            headers.put("RateLimit", "\"" + rule + "\";r=" + Math.max(remaining, 0)
                + (never && !allowed ? "" : ";t=" + seconds(until)));
        }
        if (!allowed && !never) {
            headers.put("Retry-After", Long.toString(seconds(retryAfter)));
        }
        boolean later = !allowed && !never;
        return new Decision(allowed, never && !allowed, limit, remaining,
            later ? Optional.of(retryAfter) : Optional.empty(), resetAfter, delay, rule, source,
            List.of(), Map.copyOf(headers));
    }

    static Optional<Duration> retryAfter(boolean allowed, Object milliseconds) {
        return !allowed && milliseconds instanceof Long ms
            ? Optional.of(Duration.ofMillis(ms)) : Optional.empty();
    }

    /** Whole seconds, rounded up. */
    private static long seconds(Duration span) {
        return (span.toMillis() + 999) / 1000;
    }
}
