package io.github.tidegate.client;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * One call to the server.
 *
 * @param name for listeners
 * @param rule for listeners
 * @param breaker the circuit of its transport; null for calls that are always sent
 * @param deadline when the caller stops waiting
 * @param send sends it
 * @param read turns the reply into the result
 * @param attempts how often it is sent while there is no answer; above 1 only if that is harmless
 * @param unanswered the result without an answer; null if the call fails then
 */
record Operation<R, T>(String name, String rule, CircuitBreaker breaker, Duration deadline,
        Supplier<CompletableFuture<R>> send, Function<R, T> read, int attempts,
        Supplier<T> unanswered) {}
