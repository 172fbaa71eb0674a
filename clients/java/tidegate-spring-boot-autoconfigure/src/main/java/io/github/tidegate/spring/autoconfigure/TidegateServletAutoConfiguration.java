package io.github.tidegate.spring.autoconfigure;

import io.github.tidegate.client.TidegateClient;
import io.github.tidegate.spring.web.RateLimitedExceptionHandler;
import io.github.tidegate.spring.web.TidegateServletFilter;
import jakarta.servlet.Filter;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.web.servlet.DispatcherServlet;

/** Responses to denials and the filter, for Spring MVC. */
@AutoConfiguration(after = TidegateAutoConfiguration.class)
@ConditionalOnBean(TidegateClient.class)
@ConditionalOnClass({Filter.class, DispatcherServlet.class})
@ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
public class TidegateServletAutoConfiguration {
    /** Makes the configuration. */
    public TidegateServletAutoConfiguration() {}

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
    public TidegateServletFilter tidegateServletFilter(TidegateClient client,
            TidegateProperties properties) {
        return new TidegateServletFilter(client, properties.filter().dropHeaders(),
            properties.filter().order());
    }
}
