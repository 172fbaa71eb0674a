package io.github.tidegate.spring;

import io.github.tidegate.client.Check;
import io.github.tidegate.client.CheckRequest;
import io.github.tidegate.client.Decision;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.context.expression.BeanFactoryResolver;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.ParameterNameDiscoverer;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.EvaluationContext;
import org.springframework.expression.Expression;
import org.springframework.expression.spel.standard.SpelExpressionParser;
import org.springframework.util.ObjectUtils;
import org.springframework.util.ReflectionUtils;

/** The limits of one method, parsed and validated once. */
final class LimitedMethod {
    private static final SpelExpressionParser PARSER = new SpelExpressionParser();
    private static final ParameterNameDiscoverer NAMES = new DefaultParameterNameDiscoverer();

    private final Method method;
    private final List<Limit> limits;
    /** Null for none. */
    private final Method fallback;

    private record Limit(RateLimit annotation, Expression key, Expression cost) {}

    /** What {@code #root} is in expressions. */
    record Root(Object target, Method method, Object[] args) {}

    private LimitedMethod(Method method, List<Limit> limits, Method fallback) {
        this.method = method;
        this.limits = limits;
        this.fallback = fallback;
    }

    /** The limits of a method, or null if it has none. Throws if an annotation is invalid. */
    static LimitedMethod of(Method method, Class<?> targetClass) {
        Set<RateLimit> found = AnnotatedElementUtils.findMergedRepeatableAnnotations(method,
            RateLimit.class, RateLimit.List.class);
        if (found.isEmpty()) {
            return null;
        }
        List<Limit> limits = new ArrayList<>();
        Method fallback = null;
        for (RateLimit annotation : found) {
            if (annotation.rule().isEmpty() == annotation.limit().isEmpty()) {
                throw new IllegalStateException(
                    "@RateLimit on " + method + ": name a rule or give a limit, not both");
            }
            limits.add(new Limit(annotation, parse(annotation.key(), method),
                parse(annotation.cost(), method)));
            if (fallback == null && !annotation.fallbackMethod().isEmpty()) {
                fallback = fallback(method, targetClass, annotation.fallbackMethod());
            }
        }
        return new LimitedMethod(method, limits, fallback);
    }

    private static Expression parse(String expression, Method method) {
        try {
            return expression.isEmpty() ? null : PARSER.parseExpression(expression);
        } catch (RuntimeException e) {
            throw new IllegalStateException("@RateLimit on " + method + ": " + e.getMessage(), e);
        }
    }

    private static Method fallback(Method method, Class<?> targetClass, String name) {
        Class<?>[] parameters = method.getParameterTypes();
        Class<?>[] withDecision = Arrays.copyOf(parameters, parameters.length + 1);
        withDecision[parameters.length] = Decision.class;
        Method found = ReflectionUtils.findMethod(targetClass, name, withDecision);
        if (found == null) {
            found = ReflectionUtils.findMethod(targetClass, name, parameters);
        }
        if (found == null || !method.getReturnType().isAssignableFrom(found.getReturnType())) {
            throw new IllegalStateException("@RateLimit on " + method + ": " + targetClass.getName()
                + " has no method " + name + " with the same parameters and return type");
        }
        ReflectionUtils.makeAccessible(found);
        return found;
    }

    CheckRequest request(Object target, Object[] arguments, BeanFactory beans) {
        MethodBasedEvaluationContext context = new MethodBasedEvaluationContext(
            new Root(target, method, arguments), method, arguments, NAMES);
        context.setBeanResolver(new BeanFactoryResolver(beans));
        Check[] checks = new Check[limits.size()];
        for (int i = 0; i < checks.length; i++) {
            checks[i] = check(limits.get(i), context);
        }
        return CheckRequest.of(checks);
    }

    private Check check(Limit limit, EvaluationContext context) {
        String[] key = limit.key() == null ? new String[0]
            : parts(limit.key().getValue(context), limit);
        RateLimit annotation = limit.annotation();
        Check check = annotation.rule().isEmpty() ? Check.limit(annotation.limit(), key)
            : Check.rule(annotation.rule(), key);
        if (limit.cost() == null) {
            return check;
        }
        Long cost = limit.cost().getValue(context, Long.class);
        if (cost == null || cost < 0) {
            throw new IllegalArgumentException("@RateLimit on " + method + ": cost \""
                + limit.annotation().cost() + "\" is " + cost + ", not a number from 0");
        }
        return check.cost(cost);
    }

    /** A key that is missing is an error: it would be counted with all others. */
    private String[] parts(Object key, Limit limit) {
        Collection<?> parts = key instanceof Collection<?> list ? list
            : key != null && key.getClass().isArray()
                ? Arrays.asList(ObjectUtils.toObjectArray(key)) : Arrays.asList(key);
        String[] texts = new String[parts.size()];
        int i = 0;
        for (Object part : parts) {
            if (part == null) {
                throw new IllegalArgumentException("@RateLimit on " + method + ": key \""
                    + limit.annotation().key() + "\" is null");
            }
            texts[i++] = part.toString();
        }
        return texts;
    }

    boolean hasFallback() {
        return fallback != null;
    }

    Object callFallback(Object target, Object[] arguments, Decision decision) throws Throwable {
        Object[] passed = arguments;
        if (fallback.getParameterCount() > arguments.length) {
            passed = Arrays.copyOf(arguments, arguments.length + 1);
            passed[arguments.length] = decision;
        }
        try {
            return fallback.invoke(target, passed);
        } catch (InvocationTargetException e) {
            throw e.getTargetException();
        }
    }
}
