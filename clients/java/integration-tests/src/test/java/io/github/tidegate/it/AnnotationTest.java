package io.github.tidegate.it;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.tidegate.client.Check;
import io.github.tidegate.client.Decision;
import io.github.tidegate.client.RateLimitedException;
import io.github.tidegate.client.RefusedException;
import io.github.tidegate.client.TidegateClient;
import io.github.tidegate.spring.RateLimit;
import io.github.tidegate.testing.ServerProcess;
import java.io.Serializable;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** {@code @RateLimit} on methods of beans, with a real server. */
class AnnotationTest {
    private static final String POLICY = """
        rules:
          - { name: two, key: ["header:x"], limits: ["sliding-log 2/1h"] }
          - { name: ten, key: ["header:x"], limits: ["sliding-log 10/1h"] }
          - { name: all, limits: ["sliding-log 1/1h"] }
          - { name: queue, key: ["header:x"], limits: ["leaky-bucket 5/s capacity 9 queue"] }
        """;

    private static ServerProcess server;
    private static ConfigurableApplicationContext application;
    private static Service service;

    record User(String id, String tenant) {}

    /** Has an interface and is looked up by its class, which a proxy of the interface is not. */
    static class Service implements Serializable {
        private final AtomicInteger calls = new AtomicInteger();

        public int calls() {
            return calls.get();
        }

        @RateLimit(rule = "two", key = "#user.id")
        public String login(User user) {
            calls.incrementAndGet();
            return "welcome " + user.id();
        }

        @RateLimit(rule = "two", key = "{#user.tenant, #user.id}")
        public int byTenant(User user) {
            return calls.incrementAndGet();
        }

        @RateLimit(rule = "ten", key = "#key", cost = "#items.size() * 2")
        public void batch(String key, List<String> items) {}

        @RateLimit(rule = "two", key = "#key", fallbackMethod = "busy")
        public String greet(String key) {
            return "hello";
        }

        private String busy(String key, Decision decision) {
            return "busy, " + key + ", " + decision.rule();
        }

        @RateLimit(rule = "two", key = "#key")
        public CompletableFuture<String> future(String key) {
            return CompletableFuture.completedFuture(Thread.currentThread().getName());
        }

        @RateLimit(rule = "two", key = "#key")
        public Mono<Integer> mono(String key) {
            return Mono.fromSupplier(calls::incrementAndGet);
        }

        @RateLimit(rule = "two", key = "#key", fallbackMethod = "fewer")
        public Flux<Integer> flux(String key) {
            return Flux.just(1, 2, 3);
        }

        private Flux<Integer> fewer(String key) {
            return Flux.just(0);
        }

        @RateLimit(rule = "ten", key = "#key")
        @RateLimit(rule = "two", key = "#key")
        public void both(String key) {}

        @RateLimit(rule = "all")
        public void everyone() {}

        @RateLimit(limit = "sliding-log 1/1h", key = "#root.method.name + @suffix")
        public void adhoc() {}

        @RateLimit(rule = "queue", key = "'q'")
        public long queued() {
            return System.nanoTime();
        }

        @RateLimit(rule = "no-such-rule", key = "'x'")
        public void unknown() {}
    }

    @Configuration
    @EnableAutoConfiguration
    static class Application {
        @Bean
        Service service() {
            return new Service();
        }

        @Bean
        String suffix() {
            return "-of-a-bean";
        }
    }

    @BeforeAll
    static void start() {
        server = ServerProcess.withPolicy(POLICY);
        application = Applications.start(WebApplicationType.NONE, server.url(), Application.class);
        service = application.getBean(Service.class);
    }

    @AfterAll
    static void stop() {
        application.close();
        server.close();
    }

    private static long remaining(String rule, String... key) {
        return application.getBean(TidegateClient.class).check(Check.rule(rule, key).cost(0))
            .remaining();
    }

    @Test
    void a_denied_call_throws_and_does_not_run_the_method() {
        User ann = new User("ann", "a");
        service.login(ann);
        assertEquals("welcome ann", service.login(ann));
        int before = service.calls();
        RateLimitedException denied =
            assertThrows(RateLimitedException.class, () -> service.login(ann));
        assertEquals(before, service.calls());
        assertEquals("two", denied.decision().rule());
        assertTrue(denied.decision().retryAfter().isPresent());
        assertEquals("welcome bob", service.login(new User("bob", "a")));
    }

    @Test
    void a_list_is_a_key_of_several_parts() {
        service.byTenant(new User("b", "a"));
        assertEquals(1, remaining("two", "a", "b"));
        assertEquals(2, remaining("two", "b", "a"));
    }

    @Test
    void the_cost_is_computed_from_the_arguments() {
        service.batch("cost", List.of("x", "y", "z"));
        assertEquals(4, remaining("ten", "cost"));
        assertThrows(RateLimitedException.class,
            () -> service.batch("cost", List.of("x", "y", "z")));
        assertEquals(4, remaining("ten", "cost"));
    }

    @Test
    void the_fallback_method_runs_instead_of_a_denied_call() {
        service.greet("fallback");
        assertEquals("hello", service.greet("fallback"));
        assertEquals("busy, fallback, two", service.greet("fallback"));
    }

    @Test
    void a_future_is_limited_and_its_method_does_not_run_in_a_thread_of_the_client() {
        String thread = service.future("future").join();
        assertTrue(!thread.startsWith("tidegate"), thread);
        service.future("future").join();
        CompletionException denied =
            assertThrows(CompletionException.class, () -> service.future("future").join());
        assertInstanceOf(RateLimitedException.class, denied.getCause());
    }

    @Test
    void every_subscription_to_a_mono_is_checked() {
        int before = service.calls();
        Mono<Integer> mono = service.mono("mono");
        assertEquals(2, remaining("two", "mono"));
        mono.block();
        mono.block();
        assertThrows(RateLimitedException.class, mono::block);
        assertEquals(before + 2, service.calls());
    }

    @Test
    void a_denied_flux_is_that_of_the_fallback_method() {
        assertEquals(List.of(1, 2, 3), service.flux("flux").collectList().block());
        service.flux("flux").blockLast();
        assertEquals(List.of(0), service.flux("flux").collectList().block());
    }

    @Test
    void of_several_annotations_all_are_charged_or_none() {
        service.both("both");
        service.both("both");
        assertThrows(RateLimitedException.class, () -> service.both("both"));
        assertEquals(8, remaining("ten", "both"));
    }

    @Test
    void a_rule_without_a_key_counts_all_calls_together() {
        service.everyone();
        assertThrows(RateLimitedException.class, service::everyone);
    }

    @Test
    void expressions_know_the_method_and_other_beans() {
        service.adhoc();
        assertThrows(RateLimitedException.class, service::adhoc);
        Check same = Check.limit("sliding-log 1/1h", "adhoc-of-a-bean").cost(0);
        assertEquals(0, application.getBean(TidegateClient.class).check(same).remaining());
    }

    @Test
    void a_key_that_is_null_is_an_error() {
        assertThrows(IllegalArgumentException.class, () -> service.login(new User(null, "a")));
    }

    @Test
    void a_call_waits_for_its_turn_in_a_queue() {
        long first = service.queued();
        long second = service.queued();
        long third = service.queued();
        // One start every 200 ms: the server's schedule, on which a slow machine only adds.
        assertTrue(third - first >= 200_000_000L, () -> (third - first) + " ns");
        assertTrue(second > first);
    }

    @Test
    void an_unknown_rule_is_an_error() {
        assertThrows(RefusedException.class, service::unknown);
    }

    static class WrongFallback {
        @RateLimit(rule = "two", key = "'x'", fallbackMethod = "missing")
        public void limited() {}
    }

    @Configuration
    @EnableAutoConfiguration
    static class WrongApplication {
        @Bean
        WrongFallback wrong() {
            return new WrongFallback();
        }
    }

    @Test
    void a_fallback_method_that_does_not_exist_fails_the_start() {
        Exception failure = assertThrows(Exception.class, () -> Applications
            .start(WebApplicationType.NONE, server.url(), WrongApplication.class).close());
        assertTrue(Applications.rootCause(failure).contains("has no method missing"));
    }
}
