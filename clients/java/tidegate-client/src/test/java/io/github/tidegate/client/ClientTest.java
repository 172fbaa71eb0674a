package io.github.tidegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.tidegate.testing.ServerProcess;
import java.net.CookieHandler;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What the shared cases leave out: futures, threads, forward auth, usage, waiting. */
class ClientTest {
    private static final String POLICY = """
        rules:
          - { name: two, match: { path: /none }, key: ["header:x"], limits: ["sliding-log 2/1h"] }
          - name: hundred
            match: { path: /none }
            key: ["header:x"]
            limits: ["sliding-log 100/1h"]
          - { name: fast, match: { path: /none }, key: ["header:x"], limits: ["2/s"] }
          - name: tokens
            match: { path: /none }
            key: ["header:x"]
            unit: tokens
            limits: ["sliding-window 1000/1d"]
          - name: pages
            match: { method: GET, path: "/page", host: "shop.example" }
            key: [client_ip, "query:user"]
            limits: ["sliding-log 1/1h"]
        """;

    private static ServerProcess server;

    @BeforeAll
    static void start() {
        server = ServerProcess.withPolicy(POLICY);
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    private static TidegateClientBuilder builder() {
        return TidegateClient.builder().url(server.url()).deadline(Duration.ofSeconds(5))
            .onNoAnswer(OnNoAnswer.DENY);
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void concurrent_checks_are_admitted_up_to_the_limit(boolean overResp) {
        try (TidegateClient client =
            builder().respUrl(overResp ? server.respUrl() : null).build()) {
            List<CompletableFuture<Decision>> sent = new ArrayList<>();
            for (int i = 0; i < 300; i++) {
                sent.add(client.checkAsync(Check.rule("hundred", "async-" + overResp)));
            }
            long allowed = sent.stream().filter(one -> one.join().allowed()).count();
            assertEquals(100, allowed);
        }
    }

    @Test
    void the_number_of_threads_does_not_grow_with_the_calls() {
        try (TidegateClient client = builder().build()) {
            client.check("hundred", "threads");
            int before = Thread.activeCount();
            List<CompletableFuture<Decision>> sent = new ArrayList<>();
            for (int i = 0; i < 200; i++) {
                sent.add(client.checkAsync(Check.rule("hundred", "threads")));
            }
            int during = Thread.activeCount();
            sent.forEach(CompletableFuture::join);
            // A pool starts its few threads when it first needs them.
            assertTrue(during <= before + 3, before + " threads before, " + during + " during");
        }
    }

    @Test
    void a_refused_future_fails_with_the_reason() {
        try (TidegateClient client = builder().build()) {
            CompletionException failure = assertThrows(CompletionException.class,
                () -> client.checkAsync(Check.rule("no-such-rule", "k")).join());
            RefusedException refused =
                assertInstanceOf(RefusedException.class, failure.getCause());
            assertEquals(404, refused.status());
        }
    }

    @Test
    void a_call_waits_for_permits_beyond_the_deadline() {
        try (TidegateClient client = builder().build()) {
            CheckRequest request = CheckRequest.of(Check.rule("fast", "wait").cost(2))
                .waitUpTo(Duration.ofSeconds(30));
            assertTrue(client.check(request).allowed());
            assertTrue(client.check(request).allowed());
        }
    }

    @Test
    void a_token_loses_its_line_end_and_cannot_add_a_header() {
        assertEquals("secret", TidegateClient.builder().token("secret\r\n").token);
        assertEquals("", TidegateClient.builder().token("\n").token);
        for (String token : List.of("a\r\nx-forwarded-for: 10.0.0.1", "a b", "geh\u00edm", "a\0")) {
            assertThrows(IllegalArgumentException.class,
                () -> TidegateClient.builder().token(token), token);
        }
    }

    @Test
    void a_cost_is_not_negative() {
        for (long cost : new long[] {-1, -1000, Long.MIN_VALUE}) {
            assertThrows(IllegalArgumentException.class, () -> Check.rule("r").cost(cost));
        }
    }

    @Test
    void usage_is_recorded_and_refunded() {
        try (TidegateClient client = builder().build()) {
            assertEquals(0, client.record(Check.rule("two", "usage").cost(3)).remaining());
            assertFalse(client.check("two", "usage").allowed());
            client.refund(Check.rule("two", "usage").cost(2));
            assertTrue(client.recordAsync(Check.rule("two", "usage")).join() != null);
        }
    }

    @Test
    void forward_auth_matches_method_path_host_address_and_query() {
        try (TidegateClient client = builder().build()) {
            assertTrue(authorize(client, "203.0.113.1", "ann").allowed());
            Decision denied = authorize(client, "203.0.113.1", "ann");
            assertFalse(denied.allowed());
            assertEquals(List.of("pages"), denied.violatedPolicies());
            assertTrue(denied.retryAfter().isPresent());
            assertEquals("0", denied.headers().get("X-RateLimit-Remaining"));
            assertTrue(authorize(client, "203.0.113.2", "ann").allowed());
            assertTrue(authorize(client, "203.0.113.1", "bob").allowed());
        }
    }

    private static Decision authorize(TidegateClient client, String address, String user) {
        // A client that forges the headers of a proxy is not believed.
        return client.authorize(new AuthorizeRequest("GET", "/page?user=" + user, "shop.example",
            address, Map.of("X-Forwarded-Uri", List.of("/other"), "X-Original-Method",
                List.of("POST"), "X-Forwarded-For", List.of("198.51.100.7"), "Connection",
                List.of("close"))));
    }

    @Test
    void a_reservation_is_extended_and_what_is_left_open_is_cancelled() {
        try (TidegateClient client = builder().build()) {
            CheckRequest request = CheckRequest.of(Check.rule("tokens", "open").cost(400));
            try (Reservation reservation = client.reserve(request)) {
                assertTrue(reservation.extend(Map.of("tokens", 700L)).allowed());
                assertFalse(reservation.extend(Map.of("tokens", 1100L)).allowed());
                assertTrue(reservation.renew(Duration.ofMinutes(2)));
                assertEquals(300, remaining(client, "open"));
            }
            assertEquals(1000, remaining(client, "open"));
            client.reserveAsync(request).join().commitAsync(100).join();
            assertEquals(900, remaining(client, "open"));
        }
    }

    private static long remaining(TidegateClient client, String key) {
        return client.check(Check.rule("tokens", key).cost(0)).remaining();
    }

    @Test
    void listeners_see_every_call() {
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        CallListener listener = (operation, rule, outcome, answered, nanos) ->
            seen.add(operation + " " + rule + " " + outcome + " " + answered);
        try (TidegateClient client = builder().listener(listener).build()) {
            client.check(Check.rule("two", "seen").cost(2));
            client.check("two", "seen");
            assertThrows(RefusedException.class, () -> client.check("missing", "seen"));
        }
        assertEquals(List.of("check two ALLOWED true", "check two DENIED true",
            "check missing REFUSED true"), seen);
    }

    @Test
    void calls_end_at_the_deadline_while_the_http_threads_are_blocked() throws Exception {
        CountDownLatch blocked = new CountDownLatch(2);
        CountDownLatch end = new CountDownLatch(1);
        AtomicBoolean blocks = new AtomicBoolean();
        // Runs in the threads of HTTP before a request is sent, as the lookup of a host name does.
        CookieHandler handler = new CookieHandler() {
            @Override
            public Map<String, List<String>> get(URI uri, Map<String, List<String>> headers) {
                if (blocks.get()) {
                    blocked.countDown();
                    awaitQuietly(end);
                }
                return Map.of();
            }

            @Override
            public void put(URI uri, Map<String, List<String>> headers) {}
        };
        try (TidegateClient client = builder().http(http -> http.cookieHandler(handler))
                .deadline(Duration.ofSeconds(1)).build()) {
            blocks.set(true);
            List<CompletableFuture<Decision>> sent = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                sent.add(client.checkAsync(Check.rule("hundred", "blocked")));
            }
            for (CompletableFuture<Decision> one : sent) {
                assertEquals(Decision.NONE, one.get(60, TimeUnit.SECONDS).source());
            }
            assertEquals(0, blocked.getCount());
        } finally {
            end.countDown();
        }
    }

    private static void awaitQuietly(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    @Test
    void closing_the_client_ends_calls_in_flight() throws Exception {
        try (ServerProcess own = ServerProcess.withPolicy(POLICY)) {
            TidegateClient client =
                builder().url(own.url()).deadline(Duration.ofMinutes(10)).build();
            Reservation reservation =
                client.reserve(CheckRequest.of(Check.rule("tokens", "closed").cost(1)));
            own.freeze();
            var check = client.checkAsync(Check.rule("hundred", "closed"));
            var settled = reservation.cancelAsync();
            client.close();
            assertEquals(Decision.NONE, check.get(60, TimeUnit.SECONDS).source());
            ExecutionException failure = assertThrows(ExecutionException.class,
                () -> settled.get(60, TimeUnit.SECONDS));
            assertInstanceOf(NoAnswerException.class, failure.getCause());
            own.thaw();
        }
    }
}
