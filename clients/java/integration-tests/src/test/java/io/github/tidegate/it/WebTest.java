package io.github.tidegate.it;

import static io.github.tidegate.it.Applications.get;
import static io.github.tidegate.it.Applications.header;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.tidegate.spring.RateLimit;
import io.github.tidegate.spring.metrics.MicrometerCallListener;
import io.github.tidegate.testing.ServerProcess;
import io.micrometer.core.instrument.MeterRegistry;
import java.net.http.HttpResponse;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** Controllers and filters in servlet and in WebFlux applications, with a real server. */
class WebTest {
    private static final String POLICY = """
        rules:
          - { name: two, match: { path: /none }, key: ["header:x"], limits: ["sliding-log 2/1h"] }
          - name: pages
            match: { path: "/page/*" }
            key: ["header:x-api-key"]
            limits: ["sliding-log 2/1h"]
        """;

    private ServerProcess server;

    @RestController
    static class Pages {
        @GetMapping("/limited")
        @RateLimit(rule = "two", key = "#user")
        public String limited(@RequestParam("user") String user) {
            return "hello " + user;
        }

        @GetMapping("/future")
        @RateLimit(rule = "two", key = "#user")
        public CompletableFuture<String> future(@RequestParam("user") String user) {
            return CompletableFuture.completedFuture("hello " + user);
        }

        @GetMapping("/page/one")
        public String page() {
            return "page";
        }
    }

    @Configuration
    @EnableAutoConfiguration
    static class Application {
        @Bean
        Pages pages() {
            return new Pages();
        }
    }

    @BeforeEach
    void startServer() {
        server = ServerProcess.withPolicy(POLICY);
    }

    @AfterEach
    void stopServer() {
        server.close();
    }

    @ParameterizedTest
    @EnumSource(names = {"SERVLET", "REACTIVE"})
    void a_denied_call_of_a_controller_is_answered_with_problem_details(WebApplicationType type)
            throws Exception {
        try (var application = Applications.start(type, server.url(), Application.class)) {
            for (String path : new String[] {"/limited?user=ann", "/future?user=bob"}) {
                assertEquals(200, get(application, path).statusCode());
                assertEquals(200, get(application, path).statusCode());
                assertDenied(get(application, path, "Accept", "text/html"), "quota-exceeded",
                    "[\"two\"]");
            }
            assertTrue(timed(application, "check", "denied", true) == 2);
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"SERVLET", "REACTIVE"})
    void the_filter_applies_the_rules_that_match(WebApplicationType type) throws Exception {
        try (var application = Applications.start(type, server.url(), Application.class,
            "tidegate.filter.enabled=true", "tidegate.filter.local-limit=100/s")) {
            HttpResponse<String> first = get(application, "/page/one?q=1", "x-api-key", "k1");
            assertEquals("page", first.body());
            assertEquals("\"pages\";r=1;t=3600", header(first, "RateLimit"));
            get(application, "//page/%6fne", "x-api-key", "k1");
            assertDenied(get(application, "/page/one", "x-api-key", "k1"), "quota-exceeded",
                "[\"pages\"]");
            assertEquals(200, get(application, "/page/one", "x-api-key", "k2").statusCode());
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"SERVLET", "REACTIVE"})
    void without_an_answer_a_share_of_the_limit_is_enforced(WebApplicationType type)
            throws Exception {
        try (var application = Applications.start(type, server.url(), Application.class,
            "tidegate.filter.enabled=true", "tidegate.filter.local-limit=sliding-log 6/1h")) {
            server.kill();
            assertEquals(200, get(application, "/limited?user=ann").statusCode());
            assertDenied(get(application, "/limited?user=ann"), "temporary-reduced-capacity",
                "[\"two\"]");
            assertEquals(200, get(application, "/page/one").statusCode());
            assertDenied(get(application, "/page/one"), "temporary-reduced-capacity",
                "[\"adhoc\"]");
            assertTrue(timed(application, "authorize", "allowed", false) == 3);
        }
    }

    @Test
    void dropped_headers_do_not_reach_the_server() throws Exception {
        try (var application = Applications.start(WebApplicationType.SERVLET, server.url(),
            Application.class, "tidegate.filter.enabled=true", "tidegate.on-no-answer=deny",
            "tidegate.filter.drop-headers=X-Api-Key")) {
            get(application, "/page/one", "x-api-key", "k1");
            get(application, "/page/one", "x-api-key", "k2");
            assertEquals(429, get(application, "/page/one", "x-api-key", "k3").statusCode());
        }
    }

    @Test
    void a_filter_with_a_local_share_needs_a_limit() {
        Exception failure = assertThrows(Exception.class,
            () -> Applications.start(WebApplicationType.SERVLET, server.url(), Application.class,
                "tidegate.filter.enabled=true").close());
        assertTrue(Applications.rootCause(failure).contains("local-limit is required"));
    }

    @Test
    void a_disabled_starter_limits_nothing() throws Exception {
        try (var application = Applications.start(WebApplicationType.SERVLET, server.url(),
            Application.class, "tidegate.enabled=false")) {
            for (int i = 0; i < 4; i++) {
                assertEquals(200, get(application, "/limited?user=ann").statusCode());
            }
        }
    }

    private static void assertDenied(HttpResponse<String> response, String type, String policies) {
        assertEquals(429, response.statusCode(), response.body());
        assertEquals("application/problem+json", header(response, "Content-Type"));
        assertEquals("no-store", header(response, "Cache-Control"));
        assertNotNull(header(response, "Retry-After"));
        assertNotNull(header(response, "RateLimit"));
        assertNull(header(response, "Location"));
        assertTrue(response.body().contains("#" + type + "\""), response.body());
        assertTrue(response.body().contains("\"violated-policies\":" + policies), response.body());
    }

    private static long timed(ConfigurableApplicationContext application, String operation,
            String outcome, boolean answered) {
        return application.getBean(MeterRegistry.class).get(MicrometerCallListener.CALLS)
            .tags("operation", operation, "outcome", outcome, "answered",
                Boolean.toString(answered)).timer().count();
    }
}
