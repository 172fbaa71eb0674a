package io.github.tidegate.spring.gateway;

import io.github.tidegate.client.Check;
import io.github.tidegate.client.TidegateClient;
import org.springframework.cloud.gateway.filter.ratelimit.AbstractRateLimiter;
import org.springframework.cloud.gateway.support.ConfigurationService;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

/**
 * The limiter of the gateway's filter {@code RequestRateLimiter}. The rule is
 * {@code tidegate-rate-limiter.rule} of the filter's arguments, or the id of the route; the key is
 * what the filter's key resolver returns.
 */
public final class TidegateRateLimiter extends AbstractRateLimiter<TidegateRateLimiter.Config> {
    /** Prefix of the arguments of the filter. */
    public static final String CONFIGURATION_PROPERTY_NAME = "tidegate-rate-limiter";

    private final TidegateClient client;

    /** Arguments of the filter. */
    public static final class Config {
        private String rule;
        private long cost = 1;

        /** Makes the defaults: the rule with the name of the route, at cost 1. */
        public Config() {}

        /**
         * The rule.
         *
         * @return its name; null for the id of the route
         */
        public String getRule() {
            return rule;
        }

        /**
         * Sets the rule.
         *
         * @param rule its name
         */
        public void setRule(String rule) {
            this.rule = rule;
        }

        /**
         * The permits a request takes.
         *
         * @return the cost
         */
        public long getCost() {
            return cost;
        }

        /**
         * Sets the permits a request takes.
         *
         * @param cost 1 by default
         */
        public void setCost(long cost) {
            this.cost = cost;
        }
    }

    /**
     * A limiter.
     *
     * @param client the client
     * @param configuration reads the arguments of the filter
     */
    public TidegateRateLimiter(TidegateClient client, ConfigurationService configuration) {
        super(Config.class, CONFIGURATION_PROPERTY_NAME, configuration);
        this.client = client;
    }

    @Override
    public Mono<Response> isAllowed(String routeId, String id) {
        Config config = getConfig().getOrDefault(routeId, new Config());
        String rule = config.getRule() == null ? routeId : config.getRule();
        return Mono.fromFuture(client.checkAsync(Check.rule(rule, id).cost(config.getCost())))
            .publishOn(Schedulers.parallel())
            .map(decision -> new Response(decision.allowed(), decision.headers()));
    }
}
