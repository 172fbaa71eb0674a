package io.github.tidegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** The circuit, and the warnings of decisions without the server. */
class CircuitBreakerTest {
    private final AtomicInteger opened = new AtomicInteger();
    private final CircuitBreaker breaker = new CircuitBreaker(opened::incrementAndGet);

    private void fail(int times, long now) {
        for (int i = 0; i < times; i++) {
            breaker.failed(now);
        }
    }

    @Test
    void the_circuit_opens_after_failures_in_a_row() {
        fail(4, 0);
        breaker.answered();
        fail(4, 0);
        assertTrue(breaker.permits(0));
        assertEquals(0, opened.get());
        fail(1, 0);
        assertFalse(breaker.permits(0));
        assertEquals(1, opened.get());
    }

    @Test
    void one_call_in_a_second_probes_an_open_circuit() {
        fail(5, 0);
        long later = CircuitBreaker.PROBE_NANOS;
        assertFalse(breaker.permits(later - 1));
        assertTrue(breaker.permits(later));
        assertFalse(breaker.permits(later));
        assertFalse(breaker.permits(2 * later - 1));
        assertTrue(breaker.permits(2 * later));
        breaker.answered();
        assertTrue(breaker.permits(2 * later));
        assertFalse(breaker.open());
    }

    @Test
    void decisions_without_the_server_are_warned_of_at_once_and_then_once_in_a_while() {
        List<String> lines = new ArrayList<>();
        NoAnswerLog log = new NoAnswerLog(lines::add, -7);
        log.decided(-7, new NoAnswerException("refused", null));
        log.decided(0, null);
        log.decided(NoAnswerLog.INTERVAL_NANOS - 7, null);
        assertEquals(List.of("1 decisions without the server: refused",
            "2 decisions without the server: the circuit is open"), lines);
    }
}
