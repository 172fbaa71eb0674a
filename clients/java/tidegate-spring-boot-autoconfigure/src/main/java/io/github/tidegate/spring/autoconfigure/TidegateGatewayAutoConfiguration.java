package io.github.tidegate.spring.autoconfigure;

import io.github.tidegate.client.TidegateClient;
import io.github.tidegate.spring.gateway.TidegateRateLimiter;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.cloud.gateway.filter.ratelimit.AbstractRateLimiter;
import org.springframework.cloud.gateway.support.ConfigurationService;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Primary;

/** The limiter of Spring Cloud Gateway. It precedes the gateway's own on Redis. */
@AutoConfiguration(after = TidegateAutoConfiguration.class,
    beforeName = "org.springframework.cloud.gateway.config.GatewayAutoConfiguration")
@ConditionalOnBean(TidegateClient.class)
@ConditionalOnClass(AbstractRateLimiter.class)
@ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.REACTIVE)
public class TidegateGatewayAutoConfiguration {
    /** Makes the configuration. */
    public TidegateGatewayAutoConfiguration() {}

    /**
     * The limiter.
     *
     * @param client the client
     * @param configuration of the gateway
     * @return the limiter
     */
    @Bean
    @Primary
    @ConditionalOnMissingBean
    public TidegateRateLimiter tidegateRateLimiter(TidegateClient client,
            ConfigurationService configuration) {
        return new TidegateRateLimiter(client, configuration);
    }
}
