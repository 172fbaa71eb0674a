package io.github.tidegate.spring.autoconfigure;

import io.github.tidegate.client.CallListener;
import io.github.tidegate.client.OnNoAnswer;
import io.github.tidegate.client.TidegateClient;
import io.github.tidegate.client.TidegateClientBuilder;
import io.github.tidegate.spring.RateLimitPostProcessor;
import io.github.tidegate.spring.metrics.MicrometerCallListener;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.binder.MeterBinder;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** The client, {@code @RateLimit} and metrics. */
@AutoConfiguration
@ConditionalOnProperty(prefix = "tidegate", name = "enabled", matchIfMissing = true)
@EnableConfigurationProperties(TidegateProperties.class)
public class TidegateAutoConfiguration {
    /** Makes the configuration. */
    public TidegateAutoConfiguration() {}

    /**
     * The client.
     *
     * @param properties its settings
     * @param listeners observers of calls
     * @param customizers further settings
     * @return the client
     */
    @Bean(destroyMethod = "close")
    @ConditionalOnMissingBean
    public TidegateClient tidegateClient(TidegateProperties properties,
            ObjectProvider<CallListener> listeners,
            ObjectProvider<TidegateClientCustomizer> customizers) {
        TidegateClientBuilder builder = TidegateClient.builder().url(properties.url())
            .respUrl(properties.respUrl()).token(properties.token())
            .deadline(properties.deadline()).startupWait(properties.startupWait())
            .onNoAnswer(properties.onNoAnswer()).localShare(properties.localShare())
            .limits(properties.limits());
        TidegateProperties.Filter filter = properties.filter();
        if (filter.localLimit() != null) {
            builder.localAuthorizeLimit(filter.localLimit());
        } else if (filter.enabled() && properties.onNoAnswer() == OnNoAnswer.LOCAL) {
            throw new IllegalStateException("tidegate.filter.local-limit is required, because the "
                + "server alone knows which rules match; or set tidegate.on-no-answer to allow or "
                + "deny");
        }
        CallListener[] observers = listeners.orderedStream().toArray(CallListener[]::new);
        builder.listener((operation, rule, outcome, answered, nanos) -> {
            for (CallListener observer : observers) {
                observer.ended(operation, rule, outcome, answered, nanos);
            }
        });
        customizers.orderedStream().forEach(customizer -> customizer.customize(builder));
        return builder.build();
    }

    /**
     * Applies {@code @RateLimit}.
     *
     * @return the processor
     */
    @Bean
    @ConditionalOnMissingBean
    public static RateLimitPostProcessor rateLimitPostProcessor() {
        return new RateLimitPostProcessor();
    }

    /** Metrics, if Micrometer is there. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterRegistry.class)
    public static class Metrics {
        /** Makes the configuration. */
        public Metrics() {}

        /**
         * Times calls.
         *
         * @param registry the registry, if there is one
         * @return the listener
         */
        @Bean
        @ConditionalOnMissingBean
        public MicrometerCallListener tidegateCallListener(
                ObjectProvider<MeterRegistry> registry) {
            return new MicrometerCallListener(registry::getIfAvailable);
        }

        /**
         * The gauge {@code tidegate.client.circuit.open}.
         *
         * @param client the client
         * @return the binder
         */
        @Bean
        public MeterBinder tidegateCircuitGauge(TidegateClient client) {
            return registry -> Gauge
                .builder("tidegate.client.circuit.open", client, c -> c.circuitOpen() ? 1 : 0)
                .description("1 while the server gives no answers").register(registry);
        }
    }
}
