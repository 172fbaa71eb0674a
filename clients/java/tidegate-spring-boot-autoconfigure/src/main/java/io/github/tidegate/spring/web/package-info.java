/** Filters by policy, and responses to denied requests. */
package io.github.tidegate.spring.web;
