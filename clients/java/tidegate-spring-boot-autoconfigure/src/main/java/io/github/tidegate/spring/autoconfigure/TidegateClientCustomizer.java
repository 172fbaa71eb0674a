package io.github.tidegate.spring.autoconfigure;

import io.github.tidegate.client.TidegateClientBuilder;

/** Changes what properties cannot, for example TLS. Beans of this type are applied in order. */
@FunctionalInterface
public interface TidegateClientCustomizer {
    /**
     * Changes the builder, after the properties were applied.
     *
     * @param builder the builder
     */
    void customize(TidegateClientBuilder builder);
}
