package io.github.tidegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.tidegate.testing.ServerProcess;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Callers while the server is killed, restarted and frozen for 5 s. Beside them, threads wait for a
 * future that nothing completes, with the same deadline: what the machine adds to any timer.
 */
@Tag("chaos")
class ChaosTest {
    private static final Duration DEADLINE = Duration.ofMillis(150);
    private static final int CALLERS = 8;
    private static final String POLICY =
        "rules: [{ name: load, key: [\"header:x\"], limits: [\"1000000/s\"] }]";

    private record Call(long waitNanos, boolean allowed, String source) {}

    @ParameterizedTest
    @CsvSource({"ALLOW,false", "DENY,false", "LOCAL,false", "LOCAL,true"})
    void callers_wait_no_longer_than_the_deadline_and_get_the_configured_decision(
            OnNoAnswer setting, boolean overResp) throws Exception {
        List<Call> calls;
        long[] bare;
        try (ServerProcess server = ServerProcess.withPolicy(POLICY);
            TidegateClient client = TidegateClient.builder().url(server.url())
                .respUrl(overResp ? server.respUrl() : null).deadline(DEADLINE)
                .onNoAnswer(setting).build()) {
            AtomicBoolean stop = new AtomicBoolean();
            var callers = start(CALLERS, () -> call(client, stop));
            var timers = start(2, () -> timer(stop));
            faults(server);
            long recovered = recovery(client);
            stop.set(true);
            calls = callers.stream().flatMap(one -> one.join().stream()).toList();
            bare = timers.stream().flatMapToLong(one -> one.join()).sorted().toArray();
            report(setting, overResp, calls, bare, recovered);
        }
        String expected = setting == OnNoAnswer.LOCAL ? Decision.LOCAL : Decision.NONE;
        for (Call call : calls) {
            boolean answered = call.source().equals("memory");
            assertTrue(answered || call.source().equals(expected), call.toString());
            // The limit is never reached, neither on the server nor in this process.
            assertEquals(answered || setting != OnNoAnswer.DENY, call.allowed(), call.toString());
        }
        assertTrue(calls.stream().anyMatch(call -> call.source().equals(expected)));
    }

    private static void faults(ServerProcess server) throws InterruptedException {
        Thread.sleep(1000);
        server.kill();
        Thread.sleep(1500);
        server.start();
        Thread.sleep(2500);
        server.freeze();
        Thread.sleep(5000);
        server.thaw();
    }

    /** Milliseconds after the last fault until the server decides again. */
    private static long recovery(TidegateClient client) throws InterruptedException {
        long began = System.nanoTime();
        while (!client.check("load", "recovery").answered()) {
            assertTrue(System.nanoTime() - began < 30e9, "the client does not come back");
            Thread.sleep(10);
        }
        return (System.nanoTime() - began) / 1_000_000;
    }

    private static <T> List<CompletableFuture<T>> start(int count,
            Supplier<T> task) {
        List<CompletableFuture<T>> started = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            started.add(CompletableFuture.supplyAsync(task, thread -> new Thread(thread).start()));
        }
        return started;
    }

    /** Checks every few milliseconds; each caller has its own keys. */
    private static List<Call> call(TidegateClient client, AtomicBoolean stop) {
        List<Call> calls = new ArrayList<>();
        while (!stop.get()) {
            long began = System.nanoTime();
            Decision decision =
                client.check("load", "k" + ThreadLocalRandom.current().nextInt(1000));
            calls.add(new Call(System.nanoTime() - began, decision.allowed(), decision.source()));
            pause(2);
        }
        return calls;
    }

    /** Waits for nothing, with the deadline of a call. */
    private static LongStream timer(AtomicBoolean stop) {
        List<Long> waits = new ArrayList<>();
        while (!stop.get()) {
            long began = System.nanoTime();
            try {
                new CompletableFuture<Void>().get(DEADLINE.toNanos(), TimeUnit.NANOSECONDS);
            } catch (TimeoutException e) {
                waits.add(System.nanoTime() - began);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
        return waits.stream().mapToLong(Long::longValue);
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static void report(OnNoAnswer setting, boolean overResp, List<Call> calls,
            long[] bare, long recovered) {
        long[] waits = calls.stream().mapToLong(Call::waitNanos).sorted().toArray();
        // Without those that an open circuit decided at once.
        long[] sent = calls.stream()
            .filter(call -> call.source().equals("memory")
                || call.waitNanos() >= DEADLINE.toNanos())
            .mapToLong(Call::waitNanos).sorted().toArray();
        long unanswered = calls.stream().filter(call -> !call.source().equals("memory")).count();
        double goal = DEADLINE.toMillis() * 1.2;
        System.out.printf("chaos, %s over %s: %d calls, %d without an answer%n", setting,
            overResp ? "RESP" : "HTTP", calls.size(), unanswered);
        print("  all calls", waits);
        print("  answered, or waited for the deadline", sent);
        print("  bare timer of " + DEADLINE.toMillis() + " ms", bare);
        System.out.printf("  goal of p99.9 %.0f ms: %s; answers %d ms after the thaw%n", goal,
            quantile(waits, 0.999) <= goal ? "kept" : "late", recovered);
        // On a loaded machine timers themselves are late; a hang is none of that.
        assertTrue(quantile(waits, 1) < 60_000, "a caller waited " + quantile(waits, 1) + " ms");
    }

    private static void print(String what, long[] sorted) {
        System.out.printf("%s: %d, p50 %.2f ms, p99 %.1f ms, p99.9 %.1f ms, max %.1f ms%n", what,
            sorted.length, quantile(sorted, 0.5), quantile(sorted, 0.99), quantile(sorted, 0.999),
            quantile(sorted, 1));
    }

    private static double quantile(long[] sorted, double share) {
        int index = (int) Math.min(sorted.length - 1, Math.ceil(share * sorted.length));
        return sorted[index] / 1e6;
    }
}
