package io.github.tidegate.client;

import io.github.tidegate.client.CallListener.Outcome;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/**
 * Client of a Tidegate server. Make one and share it: it is safe for use by many threads, virtual
 * ones too, keeps its connections open, and has five threads of its own, whatever the number of
 * calls.
 *
 * <p>Every call ends within the deadline. Without an answer, checks and reservations are decided by
 * the configured {@link OnNoAnswer}; other calls throw {@link NoAnswerException}. A request that
 * the server refuses as invalid throws {@link RefusedException}.
 *
 * <p>Callbacks of returned futures may run in a thread of this client and must not block.
 *
 * <pre>{@code
 * try (TidegateClient client = TidegateClient.builder().url("http://127.0.0.1:8080").build()) {
 *     if (client.check("login", address).allowed()) { .. }
 * }
 * }</pre>
 */
public final class TidegateClient implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger(TidegateClient.class.getName());
    private static final Duration RULES_DEADLINE = Duration.ofSeconds(2);
    private static final long REFRESH_SECONDS = 60;
    private static final long RETRY_SECONDS = 1;
    private static final int SETTLE_ATTEMPTS = 3;

    private final Duration deadline;
    private final HttpTransport http;
    private final CircuitBreaker httpCircuit = new CircuitBreaker(() -> {});
    private final RespTransport resp;
    private final CircuitBreaker respCircuit;
    private final LocalLimiter local;
    private final String localAuthorizeLimit;
    private final Deadline deadlines;
    private final ExecutorService executor;
    private final ScheduledThreadPoolExecutor timer;
    private final CallListener listener;
    private final NoAnswerLog noAnswerLog = new NoAnswerLog(
        message -> LOG.log(System.Logger.Level.WARNING, message), System.nanoTime());
    private volatile boolean closed;

    TidegateClient(TidegateClientBuilder builder) {
        deadline = builder.deadline;
        executor = builder.newExecutor();
        timer = builder.newTimer();
        deadlines = new Deadline(timer, builder.newLateExecutor());
        http = new HttpTransport(builder.url, builder.token, deadline, executor,
            builder.httpCustomizer);
        resp = builder.respUrl == null ? null
            : new RespTransport(builder.respUrl, builder.token, deadline);
        respCircuit = new CircuitBreaker(() -> resp.reset());
        local = new LocalLimiter(builder.onNoAnswer, builder.localShare, builder.limits,
            System::nanoTime);
        localAuthorizeLimit = builder.localAuthorizeLimit;
        listener = builder.listener;
        start(builder.startupWait);
    }

    /**
     * A builder with the defaults: HTTP on 127.0.0.1:8080, a deadline of 150 ms, and a local share
     * of half the limit without an answer.
     *
     * @return the builder
     */
    public static TidegateClientBuilder builder() {
        return new TidegateClientBuilder();
    }

    /**
     * Checks a rule at cost 1.
     *
     * @param rule name of the rule
     * @param key parts of the key
     * @return the decision
     */
    public Decision check(String rule, String... key) {
        return check(Check.rule(rule, key));
    }

    /**
     * Checks one limit.
     *
     * @param check rule or ad-hoc limit, key and cost
     * @return the decision
     */
    public Decision check(Check check) {
        return check(CheckRequest.of(check));
    }

    /**
     * Checks several limits, all or none.
     *
     * @param request the checks and options
     * @return the decision
     */
    public Decision check(CheckRequest request) {
        Check single = resp == null ? null : request.single();
        return single != null ? run(respCheck(request, single)) : run(httpCheck(request));
    }

    /**
     * Checks one limit without waiting.
     *
     * @param check rule or ad-hoc limit, key and cost
     * @return the decision, within the deadline
     */
    public CompletableFuture<Decision> checkAsync(Check check) {
        return checkAsync(CheckRequest.of(check));
    }

    /**
     * Checks several limits, all or none, without waiting.
     *
     * @param request the checks and options
     * @return the decision, within the deadline
     */
    public CompletableFuture<Decision> checkAsync(CheckRequest request) {
        Check single = resp == null ? null : request.single();
        return single != null ? runAsync(respCheck(request, single))
            : runAsync(httpCheck(request));
    }

    /**
     * Matches an incoming HTTP request with the rules of the policy, and charges those that match.
     *
     * @param request the request
     * @return the decision
     */
    public Decision authorize(AuthorizeRequest request) {
        return run(authorization(request));
    }

    /**
     * Matches an incoming HTTP request with the rules of the policy, without waiting.
     *
     * @param request the request
     * @return the decision, within the deadline
     */
    public CompletableFuture<Decision> authorizeAsync(AuthorizeRequest request) {
        return runAsync(authorization(request));
    }

    /**
     * Charges usage that has happened, whether or not it fits.
     *
     * @param check rule or ad-hoc limit, key and cost
     * @return the state after it
     */
    public Decision record(Check check) {
        return run(usage("record", check));
    }

    /**
     * Charges usage that has happened, without waiting.
     *
     * @param check rule or ad-hoc limit, key and cost
     * @return the state after it
     */
    public CompletableFuture<Decision> recordAsync(Check check) {
        return runAsync(usage("record", check));
    }

    /**
     * Gives permits back.
     *
     * @param check rule or ad-hoc limit, key and cost
     * @return the state after it
     */
    public Decision refund(Check check) {
        return run(usage("refund", check));
    }

    /**
     * Gives permits back, without waiting.
     *
     * @param check rule or ad-hoc limit, key and cost
     * @return the state after it
     */
    public CompletableFuture<Decision> refundAsync(Check check) {
        return runAsync(usage("refund", check));
    }

    /**
     * Reserves permits before the work, all or none.
     *
     * @param request the checks, with a time to live if a minute is not right
     * @return the reservation; its decision says whether there is one
     */
    public Reservation reserve(CheckRequest request) {
        return run(reservation(request));
    }

    /**
     * Reserves permits before the work, without waiting.
     *
     * @param request the checks, with a time to live if a minute is not right
     * @return the reservation, within the deadline
     */
    public CompletableFuture<Reservation> reserveAsync(CheckRequest request) {
        return runAsync(reservation(request));
    }

    /**
     * A reservation that another process made, to be settled here.
     *
     * @param id its id
     * @return the reservation, whose decision is unknown and reported as allowed
     */
    public Reservation reservation(String id) {
        Decision decision = Decision.compute(true, false, -1, -1, Duration.ZERO, Duration.ZERO,
            Duration.ZERO, "", "server");
        return new Reservation(this, decision, id, Duration.ZERO);
    }

    /**
     * Reads the limits of all rules from the server now, for the local share. The client does so by
     * itself when it starts and every minute.
     */
    public void loadLimits() {
        learn(Deadline.await(http.get("/v1/rules"), RULES_DEADLINE));
    }

    /**
     * Whether a circuit is open: the last calls had no answer, and checks are decided at once by
     * {@link OnNoAnswer}, apart from probes.
     *
     * @return true while the server is taken for unavailable
     */
    public boolean circuitOpen() {
        return httpCircuit.open() || respCircuit.open();
    }

    /** Ends the threads and connections. Calls in flight end without an answer. */
    @Override
    public void close() {
        closed = true;
        deadlines.close();
        if (resp != null) {
            resp.shutdown();
        }
        executor.shutdown();
    }

    private Operation<HttpTransport.Reply, Decision> httpCheck(CheckRequest request) {
        return new Operation<>("check", request.ruleNames(), httpCircuit,
            deadline.plus(request.maxWait()), () -> http.post("/v1/check", request.toJson()),
            TidegateClient::decision, 1, () -> local.decide(request));
    }

    private Operation<Decision, Decision> respCheck(CheckRequest request, Check single) {
        return new Operation<>("check", request.ruleNames(), respCircuit, deadline,
            () -> resp.check(single), Function.identity(), 1,
            () -> local.decide(request));
    }

    private Operation<HttpTransport.Reply, Decision> usage(String name, Check check) {
        return new Operation<>(name, check.name(), null, deadline,
            () -> http.post("/v1/" + name, CheckRequest.of(check).toJson()),
            TidegateClient::decision, 1, null);
    }

    private Operation<HttpTransport.Reply, Decision> authorization(AuthorizeRequest request) {
        String address = request.remoteAddress() == null ? "" : request.remoteAddress();
        return new Operation<>("authorize", "", httpCircuit, deadline,
            () -> http.authorize(request), Decision::ofAuthorize, 1,
            () -> local.decide(CheckRequest.of(Check.limit(localAuthorizeLimit, address))));
    }

    private Operation<HttpTransport.Reply, Reservation> reservation(CheckRequest request) {
        return new Operation<>("reserve", request.ruleNames(), httpCircuit,
            deadline.plus(request.maxWait()), () -> http.post("/v1/reserve", request.toJson()),
            reply -> {
                Map<String, Object> json = reply.json();
                return new Reservation(this, Decision.of(json, reply.rateLimitHeaders()),
                    Json.text(json, "reservation"),
                    Duration.ofMillis(Json.number(json, "expires_in_ms")));
            }, 1, () -> new Reservation(this, local.decideReservation(request), "",
                Duration.ZERO));
    }

    <T> T settle(String name, byte[] body, Function<HttpTransport.Reply, T> read) {
        return run(settlement(name, body, read));
    }

    <T> CompletableFuture<T> settleAsync(String name, byte[] body,
            Function<HttpTransport.Reply, T> read) {
        return runAsync(settlement(name, body, read));
    }

    private <T> Operation<HttpTransport.Reply, T> settlement(String name, byte[] body,
            Function<HttpTransport.Reply, T> read) {
        return new Operation<>(name, "", null, deadline, () -> http.post("/v1/" + name, body),
            read, SETTLE_ATTEMPTS, null);
    }

    private static Decision decision(HttpTransport.Reply reply) {
        return Decision.of(reply.json(), reply.rateLimitHeaders());
    }

    private <R, T> T run(Operation<R, T> operation) {
        long began = System.nanoTime();
        if (operation.breaker() != null && !operation.breaker().permits(began)) {
            return unanswered(operation, began, null);
        }
        for (int attempt = 1;; attempt++) {
            try {
                R reply = Deadline.await(operation.send().get(), operation.deadline());
                return answered(operation, began, operation.read().apply(reply));
            } catch (NoAnswerException e) {
                if (attempt >= operation.attempts() || Thread.currentThread().isInterrupted()) {
                    return failed(operation, began, e);
                }
            } catch (TidegateException e) {
                return failed(operation, began, e);
            }
        }
    }

    private <R, T> CompletableFuture<T> runAsync(Operation<R, T> operation) {
        long began = System.nanoTime();
        if (operation.breaker() != null && !operation.breaker().permits(began)) {
            return CompletableFuture.completedFuture(unanswered(operation, began, null));
        }
        return attempt(operation, began, 1);
    }

    private <R, T> CompletableFuture<T> attempt(Operation<R, T> operation, long began, int count) {
        return deadlines.within(operation.send().get(), operation.deadline())
            .thenApply(reply -> answered(operation, began, operation.read().apply(reply)))
            .handle((result, error) -> {
                if (error == null) {
                    return CompletableFuture.completedFuture(result);
                }
                TidegateException cause = Deadline.asTidegate(error);
                if (cause instanceof NoAnswerException && count < operation.attempts() && !closed) {
                    return attempt(operation, began, count + 1);
                }
                return CompletableFuture.completedFuture(failed(operation, began, cause));
            }).thenCompose(Function.identity());
    }

    private <R, T> T answered(Operation<R, T> operation, long began, T result) {
        if (operation.breaker() != null) {
            operation.breaker().answered();
        }
        ended(operation, outcome(result), true, began);
        return result;
    }

    private <R, T> T failed(Operation<R, T> operation, long began, TidegateException error) {
        if (error instanceof NoAnswerException none) {
            // A 5xx is a response: the store may be away, while the server goes on deciding.
            boolean silent =
                none.status() == 0 && !(error.getCause() instanceof InterruptedException);
            if (operation.breaker() != null && silent) {
                operation.breaker().failed(System.nanoTime());
            }
            return unanswered(operation, began, error);
        }
        if (operation.breaker() != null) {
            operation.breaker().answered();
        }
        ended(operation, Outcome.REFUSED, true, began);
        throw error;
    }

    private <R, T> T unanswered(Operation<R, T> operation, long began, TidegateException error) {
        if (operation.unanswered() == null) {
            ended(operation, Outcome.NO_ANSWER, false, began);
            throw error;
        }
        noAnswerLog.decided(System.nanoTime(), error);
        T result = operation.unanswered().get();
        ended(operation, outcome(result), false, began);
        return result;
    }

    private static Outcome outcome(Object result) {
        boolean denied = result instanceof Decision decision && !decision.allowed()
            || result instanceof Reservation reservation && !reservation.decision().allowed();
        return denied ? Outcome.DENIED : Outcome.ALLOWED;
    }

    private void ended(Operation<?, ?> operation, Outcome outcome, boolean answered, long began) {
        listener.ended(operation.name(), operation.rule(), outcome, answered,
            System.nanoTime() - began);
    }

    /**
     * Reads the limits once and then every minute, for the local share. The first attempt
     * also loads classes and opens connections, which takes longer than the deadline of a check.
     */
    private void start(Duration patience) {
        CompletableFuture<Void> first = refreshRules();
        try {
            if (resp != null) {
                Deadline.await(resp.ping(), patience);
            }
            Deadline.await(first, patience);
        } catch (TidegateException e) {
            LOG.log(System.Logger.Level.WARNING, "started without the server: " + e.getMessage());
        }
    }

    private CompletableFuture<Void> refreshRules() {
        return deadlines.within(http.get("/v1/rules"), RULES_DEADLINE).handle((reply, error) -> {
            long next = RETRY_SECONDS;
            try {
                if (error != null) {
                    throw Deadline.asTidegate(error);
                }
                learn(reply);
                next = REFRESH_SECONDS;
                return null;
            } catch (RefusedException e) {
                next = REFRESH_SECONDS;
                LOG.log(System.Logger.Level.WARNING,
                    "the limits of rules are unknown: " + e.getMessage());
                throw e;
            } finally {
                if (!closed && local.needsRules()) {
                    timer.schedule(this::refreshRules, next, TimeUnit.SECONDS);
                }
            }
        });
    }

    private void learn(HttpTransport.Reply reply) {
        local.learn(Json.objects(reply.json(), "rules"));
    }
}
