package io.github.tidegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

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
}
