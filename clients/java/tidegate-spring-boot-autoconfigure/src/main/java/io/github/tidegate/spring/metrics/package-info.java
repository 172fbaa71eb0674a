/** Micrometer. */
package io.github.tidegate.spring.metrics;
