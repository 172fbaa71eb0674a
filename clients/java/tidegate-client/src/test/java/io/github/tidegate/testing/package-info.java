/** Real processes for tests: a Tidegate server and a Redis server. */
package io.github.tidegate.testing;
