package io.github.tidegate.client;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Permits that are held while work is done. Commit what it came to; {@link #close} cancels what was
 * not committed, so that a reservation fits a try statement. A settlement without an answer is
 * repeated up to twice, as repeating it is harmless, and then throws {@link NoAnswerException}.
 *
 * <p>If the server gave no answer and {@link OnNoAnswer} allowed the work, there is no reservation:
 * the {@link #id} is empty and every settlement reports {@code settled} false.
 */
public final class Reservation implements AutoCloseable {
    private final TidegateClient client;
    private final Decision decision;
    private final String id;
    private final Duration expiresIn;
    private final AtomicBoolean settled = new AtomicBoolean();

    Reservation(TidegateClient client, Decision decision, String id, Duration expiresIn) {
        this.client = client;
        this.decision = decision;
        this.id = id;
        this.expiresIn = expiresIn;
    }

    /**
     * The decision; without an allowed one there is no reservation.
     *
     * @return the decision
     */
    public Decision decision() {
        return decision;
    }

    /**
     * The id, with which any process can settle it.
     *
     * @return the id; empty if nothing is held
     */
    public String id() {
        return id;
    }

    /**
     * How long it lasted when it was made.
     *
     * @return the time until it expires
     */
    public Duration expiresIn() {
        return expiresIn;
    }

    /**
     * Charges what was reserved.
     *
     * @return what was charged
     */
    public Settlement commit() {
        return settle("commit", Map.of());
    }

    /**
     * Charges every held rule this cost.
     *
     * @param cost what the work came to
     * @return what was charged
     */
    public Settlement commit(long cost) {
        return settle("commit", Map.of("cost", cost));
    }

    /**
     * Charges each named rule its cost, and the others what was reserved.
     *
     * @param costs cost by rule
     * @return what was charged
     */
    public Settlement commit(Map<String, Long> costs) {
        return settle("commit", Map.of("costs", costs));
    }

    /**
     * Charges what a call to a language model has used, by what each rule counts.
     *
     * @param model model in the price list of the policy
     * @param usage usage as the provider reports it
     * @return what was charged
     */
    public Settlement commit(String model, Map<String, ?> usage) {
        return settle("commit", Map.of("model", model, "usage", usage));
    }

    /**
     * Charges nothing that was held.
     *
     * @return what was charged
     */
    public Settlement cancel() {
        return settle("cancel", Map.of());
    }

    /**
     * Reserves more while the work goes on.
     *
     * @param totals what each named rule has reserved then: totals, so that a call can be repeated
     * @return the decision; a denial changes nothing
     */
    public Decision extend(Map<String, Long> totals) {
        return client.settle("extend", body(Map.of("costs", totals)),
            reply -> Decision.of(reply.json(), reply.rateLimitHeaders()));
    }

    /**
     * Lets the reservation last this long from now.
     *
     * @param ttl at most an hour
     * @return false if it had expired
     */
    public boolean renew(Duration ttl) {
        return client.settle("renew", body(Map.of("ttl_ms", ttl.toMillis())),
            reply -> !Boolean.TRUE.equals(reply.json().get("expired")));
    }

    /**
     * Charges every held rule this cost, without waiting.
     *
     * @param cost what the work came to
     * @return what was charged
     */
    public CompletableFuture<Settlement> commitAsync(long cost) {
        return settleAsync("commit", Map.of("cost", cost));
    }

    /**
     * Charges nothing that was held, without waiting.
     *
     * @return what was charged
     */
    public CompletableFuture<Settlement> cancelAsync() {
        return settleAsync("cancel", Map.of());
    }

    /** Cancels the reservation, unless it was settled. */
    @Override
    public void close() {
        if (!id.isEmpty() && !settled.get()) {
            cancel();
        }
    }

    private Settlement settle(String operation, Map<String, Object> fields) {
        if (id.isEmpty()) {
            return nothing();
        }
        Settlement settlement = client.settle(operation, body(fields), Settlement::of);
        settled.set(true);
        return settlement;
    }

    private CompletableFuture<Settlement> settleAsync(String op, Map<String, Object> fields) {
        if (id.isEmpty()) {
            return CompletableFuture.completedFuture(nothing());
        }
        return client.settleAsync(op, body(fields), Settlement::of).whenComplete((done, error) -> {
            if (error == null) {
                settled.set(true);
            }
        });
    }

    private byte[] body(Map<String, Object> fields) {
        Map<String, Object> body = new LinkedHashMap<>(fields);
        body.put("reservation", id);
        return Json.write(body);
    }

    private static Settlement nothing() {
        return new Settlement(false, false, false, List.of());
    }
}
