package io.github.tidegate.client;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.function.Consumer;

/** Calls over HTTP/1.1 with the JDK's client, which keeps connections open. */
final class HttpTransport {
    private final HttpClient client;
    private final String base;
    private final String token;

    /** A response that is not an error. */
    record Reply(int status, Map<String, String> rateLimitHeaders, byte[] body) {
        Map<String, Object> json() {
            try {
                return Json.parseObject(body);
            } catch (IOException e) {
                throw new NoAnswerException("the response is not JSON: " + e.getMessage(), e);
            }
        }
    }

    HttpTransport(String base, String token, Duration connectTimeout, Executor executor,
            Consumer<HttpClient.Builder> customizer) {
        // HTTP/1.1, because over plain text the JDK would ask for an upgrade to HTTP/2.
        HttpClient.Builder builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(connectTimeout).executor(executor);
        customizer.accept(builder);
        this.client = builder.build();
        this.base = base.endsWith("/") ? base.substring(0, base.length() - 1) : base;
        this.token = token;
    }

    CompletableFuture<Reply> get(String path) {
        return send(request(path).GET().build());
    }

    CompletableFuture<Reply> post(String path, byte[] body) {
        return send(request(path).header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofByteArray(body)).build());
    }

    /** Forward auth: the request's own headers, and those that describe it. */
    CompletableFuture<Reply> authorize(AuthorizeRequest request) {
        HttpRequest.Builder builder = request("/v1/authorize").GET();
        request.forwardedHeaders().forEach((name, values) -> {
            for (String value : values) {
                addHeader(builder, name, value);
            }
        });
        return send(builder.build());
    }

    private static void addHeader(HttpRequest.Builder builder, String name, String value) {
        try {
            builder.header(name, value);
        } catch (IllegalArgumentException e) {
            // Names that the JDK reserves and values with control characters cannot be forwarded.
        }
    }

    private HttpRequest.Builder request(String path) {
        HttpRequest.Builder builder = HttpRequest.newBuilder(URI.create(base + path));
        if (!token.isEmpty()) {
            // Not Authorization: in forward auth that is the caller's own.
            builder.header("X-Tidegate-Token", token);
        }
        return builder;
    }

    /**
     * The reply; the future fails with {@link RefusedException} or {@link NoAnswerException}.
     * Cancelling the future ends the exchange.
     */
    private CompletableFuture<Reply> send(HttpRequest request) {
        CompletableFuture<Reply> reply = new CompletableFuture<>();
        var exchange = client.sendAsync(request, BodyHandlers.ofByteArray());
        exchange.whenComplete((response, error) -> {
            if (error != null) {
                reply.completeExceptionally(noAnswer(error));
                return;
            }
            try {
                reply.complete(read(response.statusCode(), response.headers(), response.body()));
            } catch (TidegateException e) {
                reply.completeExceptionally(e);
            }
        });
        reply.whenComplete((value, error) -> {
            if (reply.isCancelled()) {
                exchange.cancel(true);
            }
        });
        return reply;
    }

    private static NoAnswerException noAnswer(Throwable error) {
        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
        return new NoAnswerException("no answer from the server: " + cause, cause);
    }

    private static Reply read(int status, HttpHeaders headers, byte[] body) {
        if (status == 200 || status == 429) {
            return new Reply(status, rateLimitHeaders(headers), body);
        }
        String field = "";
        String detail = "";
        try {
            Map<String, Object> problem = Json.parseObject(body);
            field = Json.text(problem, "field");
            detail = Json.text(problem, "detail");
        } catch (IOException e) {
            detail = "a response without problem details";
        }
        if (status >= 500 || status == 408) {
            throw new NoAnswerException(status, detail);
        }
        throw new RefusedException(status, field, detail);
    }

    private static Map<String, String> rateLimitHeaders(HttpHeaders headers) {
        Map<String, String> kept = new TreeMap<>();
        for (Map.Entry<String, List<String>> header : headers.map().entrySet()) {
            String name = header.getKey().toLowerCase(Locale.ROOT);
            if (name.startsWith("ratelimit") || name.startsWith("x-ratelimit")
                || name.equals("retry-after")) {
                kept.put(canonical(name), String.join(", ", header.getValue()));
            }
        }
        return Map.copyOf(kept);
    }

    private static String canonical(String name) {
        return switch (name) {
            case "ratelimit" -> "RateLimit";
            case "ratelimit-policy" -> "RateLimit-Policy";
            case "x-ratelimit-limit" -> "X-RateLimit-Limit";
            case "x-ratelimit-remaining" -> "X-RateLimit-Remaining";
            case "x-ratelimit-reset" -> "X-RateLimit-Reset";
            case "retry-after" -> "Retry-After";
            default -> name;
        };
    }
}
