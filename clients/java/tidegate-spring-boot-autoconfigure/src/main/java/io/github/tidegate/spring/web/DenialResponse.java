package io.github.tidegate.spring.web;

import io.github.tidegate.client.Decision;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

/**
 * The response to a denied request: status 429 and problem details (RFC 9457).
 *
 * @param status 429
 * @param headers {@code Content-Type}, {@code RateLimit}, {@code Retry-After} and others
 * @param body the problem in JSON
 */
public record DenialResponse(int status, Map<String, String> headers, byte[] body) {
    private static final String TYPES = "https://iana.org/assignments/http-problem-types#";

    /**
     * The response to this denial.
     *
     * @param decision a denial
     * @return the response, as the server's own middleware makes it
     */
    public static DenialResponse of(Decision decision) {
        boolean reduced = !decision.answered() || decision.source().equals("fallback");
        String names = decision.violatedPolicies().stream()
            .map(name -> "\"" + name.replaceAll("[^A-Za-z0-9_.#-]", "") + "\"")
            .collect(Collectors.joining(","));
        String body = "{\"type\":\"" + TYPES
            + (reduced ? "temporary-reduced-capacity" : "quota-exceeded") + "\",\"title\":\""
            + (reduced ? "Request cannot be satisfied due to temporary server capacity constraints"
                : "Request cannot be satisfied as assigned quota has been exceeded")
            + "\",\"status\":429"
            + (names.isEmpty() ? "" : ",\"violated-policies\":[" + names + "]") + "}";
        Map<String, String> headers = new TreeMap<>(decision.headers());
        headers.put("Content-Type", "application/problem+json");
        headers.put("Cache-Control", "no-store");
        return new DenialResponse(429, headers, body.getBytes(StandardCharsets.UTF_8));
    }
}
