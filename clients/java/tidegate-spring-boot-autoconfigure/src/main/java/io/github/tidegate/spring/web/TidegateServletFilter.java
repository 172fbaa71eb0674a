package io.github.tidegate.spring.web;

import io.github.tidegate.client.AuthorizeRequest;
import io.github.tidegate.client.Decision;
import io.github.tidegate.client.TidegateClient;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.springframework.core.Ordered;
import org.springframework.web.filter.OncePerRequestFilter;

/** Checks every request against the rules of the policy that match it. */
public final class TidegateServletFilter extends OncePerRequestFilter implements Ordered {
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
    public TidegateServletFilter(TidegateClient client, Collection<String> droppedHeaders,
            int order) {
        this.client = client;
        this.forwarded = new ForwardedHeaders(droppedHeaders);
        this.order = order;
    }

    @Override
    public int getOrder() {
        return order;
    }

    @Override
    protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response,
            FilterChain chain) throws ServletException, IOException {
        Decision decision = client.authorize(describe(request));
        if (decision.allowed()) {
            decision.headers().forEach(response::setHeader);
            chain.doFilter(request, response);
            return;
        }
        DenialResponse denial = DenialResponse.of(decision);
        response.setStatus(denial.status());
        denial.headers().forEach(response::setHeader);
        response.setContentLength(denial.body().length);
        response.getOutputStream().write(denial.body());
    }

    private AuthorizeRequest describe(HttpServletRequest request) {
        Map<String, List<String>> headers = new LinkedHashMap<>();
        for (String name : Collections.list(request.getHeaderNames())) {
            if (forwarded.keeps(name)) {
                headers.put(name, Collections.list(request.getHeaders(name)));
            }
        }
        String query = request.getQueryString();
        return new AuthorizeRequest(request.getMethod(),
            request.getRequestURI() + (query == null ? "" : "?" + query),
            request.getHeader("Host"), request.getRemoteAddr(), headers);
    }
}
