package io.github.tidegate.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Repeatable;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Limits calls of a bean's method by a rule of the Tidegate server. A denied call does not run the
 * method: it runs {@link #fallbackMethod}, or throws
 * {@link io.github.tidegate.client.RateLimitedException}, which web applications answer with 429.
 *
 * <p>Methods that return a {@code CompletionStage}, a {@code Mono} or a {@code Flux} are checked
 * without blocking. Several annotations are checked in one step: all are charged, or none.
 *
 * <p>Expressions are SpEL: {@code #name} is a parameter, {@code #root.target} the bean,
 * {@code @name} another bean. As with every proxy, calls from within the same bean are not limited.
 */
@Documented
@Repeatable(RateLimit.List.class)
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
public @interface RateLimit {
    /**
     * The rule.
     *
     * @return its name in the policy
     */
    String rule() default "";

    /**
     * An ad-hoc limit instead of a rule.
     *
     * @return a limit such as {@code "5/min"}
     */
    String limit() default "";

    /**
     * What is counted by.
     *
     * @return an expression; a collection or an array is a key of several parts, null an error;
     *     empty for a rule without a key
     */
    String key() default "";

    /**
     * The permits a call takes.
     *
     * @return an expression of a number that is not negative; empty for 1
     */
    String cost() default "";

    /**
     * The method that runs instead of a denied call.
     *
     * @return its name; a method of the same class with the same parameters, optionally followed by
     *     a {@link io.github.tidegate.client.Decision}
     */
    String fallbackMethod() default "";

    /** Several limits of one method. */
    @Documented
    @Retention(RetentionPolicy.RUNTIME)
    @Target(ElementType.METHOD)
    @interface List {
        /**
         * The limits.
         *
         * @return the annotations
         */
        RateLimit[] value();
    }
}
