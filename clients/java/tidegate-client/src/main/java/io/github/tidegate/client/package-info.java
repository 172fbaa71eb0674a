/**
 * Client of a Tidegate server, without a framework. Start with
 * {@link io.github.tidegate.client.TidegateClient}.
 */
package io.github.tidegate.client;
