/** Spring Cloud Gateway. */
package io.github.tidegate.spring.gateway;
