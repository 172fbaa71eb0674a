package io.github.tidegate.spring;

import io.github.tidegate.client.CheckRequest;
import io.github.tidegate.client.Decision;
import io.github.tidegate.client.RateLimitedException;
import io.github.tidegate.client.TidegateClient;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.ProxyMethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.core.MethodClassKey;
import org.springframework.util.ClassUtils;

/** Checks the limits of a method before each call. */
final class RateLimitInterceptor implements MethodInterceptor {
    private static final boolean REACTOR = ClassUtils.isPresent("reactor.core.publisher.Mono",
        RateLimitInterceptor.class.getClassLoader());

    private final BeanFactory beans;
    private final Supplier<TidegateClient> client;
    private final Supplier<Executor> executor;
    private final Map<MethodClassKey, Optional<LimitedMethod>> methods = new ConcurrentHashMap<>();

    /** The client and the executor, which runs futures' methods, are looked up when needed. */
    RateLimitInterceptor(BeanFactory beans, Supplier<TidegateClient> client,
            Supplier<Executor> executor) {
        this.beans = beans;
        this.client = client;
        this.executor = executor;
    }

    /** The limits of a method; empty if it has none. */
    Optional<LimitedMethod> limits(Method method, Class<?> targetClass) {
        Class<?> owner = targetClass == null ? method.getDeclaringClass() : targetClass;
        MethodClassKey key = new MethodClassKey(method, owner);
        Optional<LimitedMethod> known = methods.get(key);
        if (known == null) {
            Method specific = AopUtils.getMostSpecificMethod(method, owner);
            known = Optional.ofNullable(LimitedMethod.of(specific, owner));
            methods.put(key, known);
        }
        return known;
    }

    @Override
    public Object invoke(MethodInvocation invocation) throws Throwable {
        Object target = invocation.getThis();
        Class<?> targetClass = target == null ? null : AopUtils.getTargetClass(target);
        LimitedMethod method = limits(invocation.getMethod(), targetClass).orElse(null);
        if (method == null) {
            return invocation.proceed();
        }
        Call call = new Call(invocation, method,
            method.request(target, invocation.getArguments(), beans));
        Class<?> type = invocation.getMethod().getReturnType();
        if (CompletionStage.class.isAssignableFrom(type)
            && type.isAssignableFrom(CompletableFuture.class)) {
            return call.later();
        }
        return REACTOR && ReactiveCalls.returns(type) ? ReactiveCalls.limit(call, type)
            : call.now();
    }

    /** One call of a limited method. */
    final class Call {
        private final MethodInvocation invocation;
        private final LimitedMethod method;
        private final CheckRequest request;

        Call(MethodInvocation invocation, LimitedMethod method, CheckRequest request) {
            this.invocation = invocation;
            this.method = method;
            this.request = request;
        }

        private Object now() throws Throwable {
            Decision decision = client.get().check(request);
            if (decision.allowed() && !decision.delay().isZero()) {
                TimeUnit.NANOSECONDS.sleep(decision.delay().toNanos());
            }
            return proceed(invocation, decision);
        }

        private CompletableFuture<Object> later() {
            MethodInvocation copy = copy();
            return decide().thenCompose(decision -> {
                Executor runs = executor.get();
                Executor turn = !decision.allowed() || decision.delay().isZero() ? runs
                    : CompletableFuture.delayedExecutor(decision.delay().toNanos(),
                        TimeUnit.NANOSECONDS, runs);
                return CompletableFuture.supplyAsync(() -> run(copy, decision), turn)
                    .thenCompose(stage -> stage);
            });
        }

        private CompletionStage<Object> run(MethodInvocation copy, Decision decision) {
            try {
                @SuppressWarnings("unchecked")
                CompletionStage<Object> result =
                    (CompletionStage<Object>) proceed(copy, decision);
                return result == null ? CompletableFuture.completedFuture(null) : result;
            } catch (Throwable e) {
                return CompletableFuture.failedFuture(e);
            }
        }

        CompletableFuture<Decision> decide() {
            return client.get().checkAsync(request);
        }

        /** The invocation, for use after this one has returned. */
        MethodInvocation copy() {
            return invocation instanceof ProxyMethodInvocation proxy ? proxy.invocableClone()
                : invocation;
        }

        Object proceed(MethodInvocation copy, Decision decision) throws Throwable {
            if (decision.allowed()) {
                return copy.proceed();
            }
            if (!method.hasFallback()) {
                throw new RateLimitedException(decision);
            }
            return method.callFallback(copy.getThis(), copy.getArguments(), decision);
        }
    }
}
