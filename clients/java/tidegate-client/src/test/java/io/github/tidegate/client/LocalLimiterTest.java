package io.github.tidegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The local share, in simulated time. */
class LocalLimiterTest {
    private final AtomicLong now = new AtomicLong(-5);

    private LocalLimiter limiter(double share, String... limits) {
        return new LocalLimiter(OnNoAnswer.LOCAL, share, Map.of("r", List.of(limits)), now::get);
    }

    private static void learn(LocalLimiter limiter, String limit) {
        limiter.learn(List.of(Map.of("name", "r", "limits", List.of(limit))));
    }

    private static Decision check(LocalLimiter limiter, String key) {
        return limiter.decide(CheckRequest.of(Check.rule("r", key)));
    }

    @ParameterizedTest
    @CsvSource({"100/s burst 20,20,200", "sliding-log 5/m,5,60000", "10/30s,10,30000",
        "fixed-window 1000/d tz Asia/Shanghai,1000,86400000", "7/hours,7,3600000",
        "leaky-bucket 10/s capacity 30 queue,30,3000", "0/s,0,1000",
        "fixed-window 3/month,3,2678400000"})
    void the_notation_is_read(String notation, long capacity, double recoveryMillis) {
        LocalLimit limit = LocalLimit.parse(notation);
        assertEquals(capacity, limit.capacity());
        assertEquals(recoveryMillis * 1e6, limit.recoveryNanos(), 1);
    }

    @ParameterizedTest
    @CsvSource({"concurrency 5", "''", "5", "5/x", "x/s", "99999999999999999999/s"})
    void what_cannot_be_counted_is_not_a_limit(String notation) {
        assertNull(LocalLimit.parse(notation));
    }

    @Test
    void any_interval_admits_at_most_the_share_and_its_refill() {
        LocalLimiter limiter = limiter(0.5, "20/s");
        Random random = new Random(1);
        List<Long> admitted = new ArrayList<>();
        for (int i = 0; i < 3000; i++) {
            now.addAndGet((long) (random.nextExponential() * 30e6));
            if (check(limiter, "k").allowed()) {
                admitted.add(now.get());
            }
        }
        for (int from = 0; from < admitted.size(); from++) {
            for (int to = from; to < Math.min(admitted.size(), from + 200); to++) {
                double seconds = (admitted.get(to) - admitted.get(from)) / 1e9;
                assertTrue(to - from + 1 <= 10 + 10 * seconds + 1e-6);
            }
        }
        assertTrue(admitted.size() > 850, () -> "admitted only " + admitted.size());
    }

    @Test
    void a_denied_request_fits_after_the_reported_wait_and_not_before() {
        LocalLimiter limiter = limiter(0.5, "sliding-log 6/1m");
        for (int i = 0; i < 3; i++) {
            assertTrue(check(limiter, "k").allowed());
        }
        Duration wait = check(limiter, "k").retryAfter().orElseThrow();
        assertEquals(Duration.ofSeconds(20), wait);
        now.addAndGet(wait.toNanos() - 2_000_000);
        assertFalse(check(limiter, "k").allowed());
        now.addAndGet(2_000_000);
        assertTrue(check(limiter, "k").allowed());
    }

    @Test
    void a_share_below_one_permit_is_one() {
        LocalLimiter limiter = limiter(0.1, "1/s");
        assertTrue(check(limiter, "k").allowed());
        assertFalse(check(limiter, "k").allowed());
        now.addAndGet(1_000_000_000);
        assertTrue(check(limiter, "k").allowed());
    }

    @Test
    void the_number_of_keys_does_not_change_the_size_of_the_state() {
        LocalLimiter limiter = limiter(1, "1/h");
        long allowed = 0;
        for (int i = 0; i < 50_000; i++) {
            if (check(limiter, "key-" + i).allowed()) {
                allowed++;
            }
        }
        // Each slot admits one; a good hash uses almost all of them.
        assertTrue(allowed <= LocalShare.SLOTS && allowed > LocalShare.SLOTS * 0.9,
            "allowed " + allowed);
    }

    @Test
    void limits_beyond_the_bound_deny() {
        LocalLimiter limiter = new LocalLimiter(OnNoAnswer.LOCAL, 1, Map.of(), now::get);
        for (int i = 1; i <= LocalLimiter.MAX_LIMITS; i++) {
            assertTrue(limiter.decide(CheckRequest.of(Check.limit(i + "/h", "k"))).allowed());
        }
        assertFalse(limiter.decide(CheckRequest.of(Check.limit("9999/h", "k"))).allowed());
    }

    @Test
    void a_changed_limit_starts_anew_and_an_unchanged_one_keeps_its_count() {
        LocalLimiter limiter = limiter(0.5, "sliding-log 2/1h");
        assertTrue(check(limiter, "k").allowed());
        learn(limiter, "sliding-log 2/1h");
        assertFalse(check(limiter, "k").allowed());
        learn(limiter, "sliding-log 4/1h");
        assertEquals(1, check(limiter, "k").remaining());
    }

    @Test
    void deny_denies_everything_but_a_peek() {
        LocalLimiter limiter = new LocalLimiter(OnNoAnswer.DENY, 0.5, Map.of(), now::get);
        assertFalse(check(limiter, "k").allowed());
        assertTrue(limiter.decide(CheckRequest.of(Check.rule("r", "k").cost(0))).allowed());
    }

    @Test
    void a_cost_that_only_the_server_can_compute_is_denied() {
        LocalLimiter limiter = limiter(0.5, "1000/d");
        CheckRequest request =
            CheckRequest.of(Check.rule("r", "k")).usage("model-a", Map.of("input", 700));
        assertFalse(limiter.decideReservation(request).allowed());
    }

    @Test
    void lists_compare_addresses_and_an_override_ends() {
        LocalLimiter limiter = limiter(1);
        limiter.learn(List.of(Map.of("name", "r", "key", List.of("client_ip"),
            "limits", List.of("9/h"), "deny", List.of("203.0.113.0/24", "2001:db8::/32",
                "::ffff:198.51.100.0/120", "::9"),
            "allow", List.of("10.0.0.0/8"), "overrides", List.of(
                Map.of("key", "192.0.2.1", "limits", List.of("3/h"), "until",
                    "2020-01-01T00:00:00.5Z"),
                Map.of("key", List.of("2001:aaaa::5"), "limits", List.of("3/h"), "until",
                    "2999-01-01T00:00:00Z")))));
        // An IPv6 client is counted by its /64.
        Map<String, String> expected = Map.ofEntries(
            Map.entry("203.0.113.7", "false 0 true"),
            Map.entry("::ffff:203.0.113.7", "false 0 true"),
            Map.entry("2001:DB8:1::1", "false 0 true"),
            Map.entry("198.51.100.3", "false 0 true"), Map.entry("0::9", "false 0 true"),
            Map.entry("203.0.114.7", "true 9 false"), Map.entry("no-address", "true 9 false"),
            Map.entry("10.9.8.7", "true 0 false"), Map.entry("192.0.2.1", "true 9 false"),
            Map.entry("2001:aaaa::6", "true 3 false"),
            Map.entry("2001:aaaa:0:1::6", "true 9 false"));
        expected.forEach((key, wanted) -> {
            Decision found = check(limiter, key);
            assertEquals(wanted, found.allowed() + " " + found.limit() + " " + found.never(), key);
        });
        assertEquals(1, check(limiter, "2001:aaaa::7").remaining());
    }
}
