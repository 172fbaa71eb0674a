package io.github.tidegate.client;

import java.net.http.HttpClient;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.function.Consumer;

/** Settings of a {@link TidegateClient}. */
public final class TidegateClientBuilder {
    /** Threads that read responses over HTTP. */
    private static final int THREADS = 2;

    String url = "http://127.0.0.1:8080";
    String respUrl;
    String token = "";
    Duration deadline = Duration.ofMillis(150);
    Duration startupWait = Duration.ofSeconds(2);
    OnNoAnswer onNoAnswer = OnNoAnswer.LOCAL;
    double localShare = 0.5;
    String localAuthorizeLimit = "";
    Map<String, List<String>> limits = Map.of();
    CallListener listener = (operation, rule, outcome, answered, nanos) -> {};
    Consumer<HttpClient.Builder> httpCustomizer = builder -> {};

    TidegateClientBuilder() {}

    /**
     * Sets the address of the HTTP listener.
     *
     * @param url for example {@code http://127.0.0.1:8080}, the default
     * @return this builder
     */
    public TidegateClientBuilder url(String url) {
        this.url = Objects.requireNonNull(url);
        return this;
    }

    /**
     * Sends checks of one limit over RESP, which is faster. It needs Lettuce on the class path; all
     * other calls stay on HTTP.
     *
     * @param url for example {@code redis://127.0.0.1:6380} or {@code rediss://..}; null for none
     * @return this builder
     */
    public TidegateClientBuilder respUrl(String url) {
        this.respUrl = url;
        return this;
    }

    /**
     * Sets the token of the server.
     *
     * @param token {@code TIDEGATE_TOKEN} of the server; null or empty for none. The end of the
     *     line of a file is left out
     * @return this builder
     */
    public TidegateClientBuilder token(String token) {
        String stripped = token == null ? "" : token.strip();
        if (!stripped.chars().allMatch(letter -> letter >= '!' && letter <= '~')) {
            throw new IllegalArgumentException(
                "the token has spaces, control characters or characters beyond ASCII");
        }
        this.token = stripped;
        return this;
    }

    /**
     * Sets how long a call waits for an answer. The server itself decides within 100 ms, by its own
     * fallback if need be; a shorter deadline gives that up.
     *
     * @param deadline 150 ms by default
     * @return this builder
     */
    public TidegateClientBuilder deadline(Duration deadline) {
        this.deadline = positive(deadline, "deadline");
        return this;
    }

    /**
     * Sets how long {@link #build} waits for the server, to read its limits and to open
     * connections. Without an answer the client starts all the same.
     *
     * @param wait 2 s by default
     * @return this builder
     */
    public TidegateClientBuilder startupWait(Duration wait) {
        this.startupWait = positive(wait, "startup wait");
        return this;
    }

    /**
     * Sets what a check or a reservation without an answer means.
     *
     * @param setting {@link OnNoAnswer#LOCAL} by default
     * @return this builder
     */
    public TidegateClientBuilder onNoAnswer(OnNoAnswer setting) {
        this.onNoAnswer = Objects.requireNonNull(setting);
        return this;
    }

    /**
     * Sets the share of each limit that this process enforces by itself: a token bucket of that
     * size, which recovers in the time in which the limit does. Each of n processes has its own.
     *
     * @param share above 0, at most 1; 0.5 by default
     * @return this builder
     */
    public TidegateClientBuilder localShare(double share) {
        if (!(share > 0 && share <= 1)) {
            throw new IllegalArgumentException("share is " + share + "; it must be in (0, 1]");
        }
        this.localShare = share;
        return this;
    }

    /**
     * Gives the limits of rules until the server is reached for the first time. Without them, the
     * local share denies checks of rules that it has not read from the server yet.
     *
     * @param limits limits by rule, in the notation of the policy
     * @return this builder
     */
    public TidegateClientBuilder limits(Map<String, List<String>> limits) {
        limits.values().forEach(list -> list.forEach(TidegateClientBuilder::requireLimit));
        this.limits = Map.copyOf(limits);
        return this;
    }

    /**
     * Gives the limit for each client address of which this process enforces its share in
     * {@link TidegateClient#authorize} without an answer: rules are matched by the server alone.
     * Without it, {@link OnNoAnswer#LOCAL} denies there.
     *
     * @param limit for example {@code "100/s"}
     * @return this builder
     */
    public TidegateClientBuilder localAuthorizeLimit(String limit) {
        requireLimit(limit);
        this.localAuthorizeLimit = limit;
        return this;
    }

    /**
     * Observes every call.
     *
     * @param listener for metrics
     * @return this builder
     */
    public TidegateClientBuilder listener(CallListener listener) {
        this.listener = Objects.requireNonNull(listener);
        return this;
    }

    /**
     * Changes the JDK's client, for example its TLS context or its proxy.
     *
     * @param customizer called once
     * @return this builder
     */
    public TidegateClientBuilder http(Consumer<HttpClient.Builder> customizer) {
        this.httpCustomizer = Objects.requireNonNull(customizer);
        return this;
    }

    /**
     * A client with these settings.
     *
     * @return the client, to be closed
     */
    public TidegateClient build() {
        return new TidegateClient(this);
    }

    ExecutorService newExecutor() {
        return Executors.newFixedThreadPool(THREADS, threads("tidegate-http"));
    }

    /** Ends late calls: a lookup of a host name, or a callback, may block the HTTP threads. */
    ExecutorService newLateExecutor() {
        return Executors.newSingleThreadExecutor(threads("tidegate-late"));
    }

    ScheduledThreadPoolExecutor newTimer() {
        ScheduledThreadPoolExecutor timer =
            new ScheduledThreadPoolExecutor(1, threads("tidegate-timer"));
        timer.setRemoveOnCancelPolicy(true);
        return timer;
    }

    private static ThreadFactory threads(String name) {
        return task -> {
            Thread thread = new Thread(task, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    private static void requireLimit(String limit) {
        if (LocalLimit.parse(limit) == null && !limit.startsWith("concurrency ")) {
            throw new IllegalArgumentException("\"" + limit + "\" is no limit such as \"100/s\"");
        }
    }

    private static Duration positive(Duration span, String name) {
        if (span.isZero() || span.isNegative()) {
            throw new IllegalArgumentException(name + " is " + span + "; it must be positive");
        }
        return span;
    }
}
