package io.github.tidegate.spring.autoconfigure;

import io.github.tidegate.client.TidegateClient;
import io.github.tidegate.spring.web.RateLimitedExceptionHandler;
import io.github.tidegate.spring.web.TidegateWebFilter;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.web.reactive.DispatcherHandler;

/** Responses to denials and the filter, for WebFlux. */
@AutoConfiguration(after = TidegateAutoConfiguration.class)
@ConditionalOnBean(TidegateClient.class)
@ConditionalOnClass(DispatcherHandler.class)
@ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.REACTIVE)
public class TidegateReactiveAutoConfiguration {
    /** Makes the configuration. */
    public TidegateReactiveAutoConfiguration() {}

    /**
     * Answers denied calls.
     *
     * @return the handler
     */
    @Bean
    @ConditionalOnMissingBean
    public RateLimitedExceptionHandler rateLimitedExceptionHandler() {
        return new RateLimitedExceptionHandler();
    }

    /**
     * Checks every request.
     *
     * @param client the client
     * @param properties of the filter
     * @return the filter
     */
    @Bean
    @ConditionalOnMissingBean
    @ConditionalOnProperty(prefix = "tidegate.filter", name = "enabled")
    public TidegateWebFilter tidegateWebFilter(TidegateClient client,
            TidegateProperties properties) {
        return new TidegateWebFilter(client, properties.filter().dropHeaders(),
            properties.filter().order());
    }
}
