/** {@link io.github.tidegate.spring.RateLimit} on methods of beans. */
package io.github.tidegate.spring;
