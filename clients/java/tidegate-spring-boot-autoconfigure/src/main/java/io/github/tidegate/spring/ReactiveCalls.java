package io.github.tidegate.spring;

import io.github.tidegate.client.Decision;
import io.github.tidegate.spring.RateLimitInterceptor.Call;
import org.aopalliance.intercept.MethodInvocation;
import org.reactivestreams.Publisher;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

/** Calls that return Mono or Flux: each subscription is checked. Loaded only with Reactor. */
final class ReactiveCalls {
    private ReactiveCalls() {}

    static boolean returns(Class<?> type) {
        return type == Mono.class || type == Flux.class || type == Publisher.class;
    }

    static Object limit(Call call, Class<?> type) {
        return type == Mono.class
            ? decided(call).flatMap(decision -> Mono.from(run(call, decision)))
            : decided(call).flatMapMany(decision -> run(call, decision));
    }

    private static Mono<Decision> decided(Call call) {
        return Mono.defer(() -> Mono.fromFuture(call.decide()))
            // Not in a thread of the client, which reads the responses of other checks.
            .publishOn(Schedulers.parallel())
            .flatMap(decision -> decision.allowed() && !decision.delay().isZero()
                ? Mono.delay(decision.delay()).thenReturn(decision) : Mono.just(decision));
    }

    @SuppressWarnings("unchecked")
    private static Publisher<Object> run(Call call, Decision decision) {
        MethodInvocation copy = call.copy();
        try {
            return (Publisher<Object>) call.proceed(copy, decision);
        } catch (Throwable e) {
            return Flux.error(e);
        }
    }
}
