package io.github.tidegate.client;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * An incoming HTTP request that the rules of the policy are matched with.
 *
 * @param method its method
 * @param uri its path and query, as received
 * @param host its host; null if unknown
 * @param remoteAddress the address it came from, without a port; null if unknown
 * @param headers its headers
 */
public record AuthorizeRequest(String method, String uri, String host, String remoteAddress,
        Map<String, List<String>> headers) {
    /** Headers of one connection or of the body, and those that this client sets itself. */
    private static final Set<String> DROPPED = Set.of("connection", "content-encoding",
        "content-length", "content-type", "expect", "forwarded", "host", "http2-settings",
        "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "x-tidegate-token");

    /** The headers of the call to the server. */
    Map<String, List<String>> forwardedHeaders() {
        Map<String, List<String>> sent = new LinkedHashMap<>();
        List<String> addresses = new ArrayList<>();
        headers.forEach((name, values) -> {
            String lower = name.toLowerCase(Locale.ROOT);
            if (lower.equals("x-forwarded-for")) {
                addresses.addAll(values);
            } else if (!DROPPED.contains(lower) && !lower.startsWith("x-forwarded-")
                && !lower.startsWith("x-original-")) {
                sent.computeIfAbsent(lower, key -> new ArrayList<>()).addAll(values);
            }
        });
        if (remoteAddress != null) {
            addresses.add(remoteAddress);
        }
        if (!addresses.isEmpty()) {
            sent.put("X-Forwarded-For", List.of(String.join(", ", addresses)));
        }
        sent.put("X-Forwarded-Method", List.of(method));
        sent.put("X-Forwarded-Uri", List.of(uri));
        if (host != null) {
            sent.put("X-Forwarded-Host", List.of(host));
        }
        return sent;
    }
}
