package io.github.tidegate.it;

import static io.github.tidegate.it.Applications.get;
import static io.github.tidegate.it.Applications.header;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;

import io.github.tidegate.testing.ServerProcess;
import java.net.http.HttpResponse;
import org.junit.jupiter.api.Test;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cloud.gateway.filter.ratelimit.KeyResolver;
import org.springframework.cloud.gateway.route.RouteLocator;
import org.springframework.cloud.gateway.route.builder.RouteLocatorBuilder;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import reactor.core.publisher.Mono;

/** The limiter of Spring Cloud Gateway, whose upstream is the Tidegate server itself. */
class GatewayTest {
    private static final String POLICY = """
        rules:
          - { name: health, key: ["header:x"], limits: ["sliding-log 2/1h"] }
        """;

    @Configuration
    @EnableAutoConfiguration
    static class Application {
        @Bean
        KeyResolver user() {
            return exchange ->
                Mono.justOrEmpty(exchange.getRequest().getHeaders().getFirst("user"));
        }

        @Bean
        RouteLocator routes(RouteLocatorBuilder builder,
                org.springframework.core.env.Environment environment) {
            // No setRateLimiter: the default limiter is the one of this starter, and the rule is
            // the id of the route.
            return builder.routes().route("health", route -> route.path("/healthz")
                .filters(filters -> filters.requestRateLimiter(config -> {}))
                .uri(environment.getRequiredProperty("tidegate.url"))).build();
        }
    }

    @Test
    void a_route_is_limited_by_the_rule_of_its_name() throws Exception {
        try (ServerProcess server = ServerProcess.withPolicy(POLICY);
            var application = Applications.start(WebApplicationType.REACTIVE, server.url(),
                Application.class)) {
            HttpResponse<String> first = get(application, "/healthz", "user", "ann");
            assertEquals(200, first.statusCode(), first.body());
            assertEquals("\"health\";r=1;t=3600", header(first, "RateLimit"));
            assertEquals(200, get(application, "/healthz", "user", "ann").statusCode());
            HttpResponse<String> denied = get(application, "/healthz", "user", "ann");
            assertEquals(429, denied.statusCode());
            assertNotNull(header(denied, "Retry-After"));
            assertEquals(200, get(application, "/healthz", "user", "bob").statusCode());
        }
    }
}
