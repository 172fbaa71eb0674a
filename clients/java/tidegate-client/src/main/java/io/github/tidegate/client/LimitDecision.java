package io.github.tidegate.client;

import java.time.Duration;
import java.util.Map;
import java.util.Optional;

/**
 * What one limit contributed to a decision.
 *
 * @param rule its rule
 * @param policy its name in the {@code RateLimit} header, such as {@code login.1}
 * @param allowed whether the cost fits
 * @param limit size of the limit
 * @param remaining permits left
 * @param retryAfter when a denied cost fits; empty if it is allowed or never fits
 * @param resetAfter time until the limit is fully recovered
 */
public record LimitDecision(String rule, String policy, boolean allowed, long limit, long remaining,
        Optional<Duration> retryAfter, Duration resetAfter) {
    static LimitDecision of(Map<String, Object> json) {
        boolean allowed = !Boolean.FALSE.equals(json.get("allowed"));
        return new LimitDecision(Json.text(json, "rule"), Json.text(json, "policy"), allowed,
            Json.number(json, "limit"), Json.number(json, "remaining"),
            Decision.retryAfter(allowed, json.get("retry_after_ms")),
            Duration.ofMillis(Json.number(json, "reset_after_ms")));
    }
}
