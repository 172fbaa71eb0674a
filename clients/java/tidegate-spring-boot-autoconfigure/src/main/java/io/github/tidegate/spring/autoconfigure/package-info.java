/** Auto-configuration and its properties. */
package io.github.tidegate.spring.autoconfigure;
