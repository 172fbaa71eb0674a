package io.github.tidegate.spring.web;

import io.github.tidegate.client.AuthorizeRequest;
import io.github.tidegate.client.Decision;
import io.github.tidegate.client.TidegateClient;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.springframework.core.Ordered;
import org.springframework.http.HttpStatusCode;
import org.springframework.http.server.reactive.ServerHttpRequest;
import org.springframework.http.server.reactive.ServerHttpResponse;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.WebFilter;
import org.springframework.web.server.WebFilterChain;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

/** Checks every request of a WebFlux application against the rules of the policy that match it. */
public final class TidegateWebFilter implements WebFilter, Ordered {
    private final TidegateClient client;
    private final ForwardedHeaders forwarded;
    private final int order;

    /**
     * A filter.
     *
     * @param client the client
     * @param droppedHeaders headers that are not sent to the server
     * @param order the place among the filters
     */
    public TidegateWebFilter(TidegateClient client, Collection<String> droppedHeaders, int order) {
        this.client = client;
        this.forwarded = new ForwardedHeaders(droppedHeaders);
        this.order = order;
    }

    @Override
    public int getOrder() {
        return order;
    }

    @Override
    public Mono<Void> filter(ServerWebExchange exchange, WebFilterChain chain) {
        return Mono.fromFuture(client.authorizeAsync(describe(exchange.getRequest())))
            // Not in a thread of the client, which reads the responses of other checks.
            .publishOn(Schedulers.parallel())
            .flatMap(decision -> {
                if (decision.allowed()) {
                    decision.headers().forEach(exchange.getResponse().getHeaders()::set);
                    return chain.filter(exchange);
                }
                return deny(exchange.getResponse(), decision);
            });
    }

    private static Mono<Void> deny(ServerHttpResponse response, Decision decision) {
        DenialResponse denial = DenialResponse.of(decision);
        response.setStatusCode(HttpStatusCode.valueOf(denial.status()));
        denial.headers().forEach(response.getHeaders()::set);
        response.getHeaders().setContentLength(denial.body().length);
        return response.writeWith(Mono.just(response.bufferFactory().wrap(denial.body())));
    }

    private AuthorizeRequest describe(ServerHttpRequest request) {
        Map<String, List<String>> headers = new LinkedHashMap<>();
        // Not as a map: HttpHeaders is one in Spring 6 and none in Spring 7.
        request.getHeaders().forEach((name, values) -> {
            if (forwarded.keeps(name)) {
                headers.put(name, new ArrayList<>(values));
            }
        });
        InetSocketAddress remote = request.getRemoteAddress();
        String query = request.getURI().getRawQuery();
        return new AuthorizeRequest(request.getMethod().name(),
            request.getURI().getRawPath() + (query == null ? "" : "?" + query),
            request.getHeaders().getFirst("Host"),
            remote == null || remote.getAddress() == null ? null
                : remote.getAddress().getHostAddress().split("%", 2)[0], headers);
    }
}
