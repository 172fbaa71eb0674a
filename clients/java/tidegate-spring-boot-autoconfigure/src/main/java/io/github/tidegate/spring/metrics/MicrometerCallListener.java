package io.github.tidegate.spring.metrics;

import io.github.tidegate.client.CallListener;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Timer;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * Times calls as {@code tidegate.client.calls}, by operation, rule, outcome, and whether the server
 * answered. Keys are never tags.
 */
public final class MicrometerCallListener implements CallListener {
    /** Name of the timer. */
    public static final String CALLS = "tidegate.client.calls";

    private final Supplier<MeterRegistry> registry;
    private final Map<Tags, Timer> timers = new ConcurrentHashMap<>();

    private record Tags(String operation, String rule, Outcome outcome, boolean answered) {}

    /**
     * A listener.
     *
     * @param registry looked up at the first call; null for none
     */
    public MicrometerCallListener(Supplier<MeterRegistry> registry) {
        this.registry = registry;
    }

    @Override
    public void ended(String operation, String rule, Outcome outcome, boolean answered,
            long nanos) {
        MeterRegistry present = registry.get();
        if (present != null) {
            timers.computeIfAbsent(new Tags(operation, rule, outcome, answered),
                tags -> timer(tags, present)).record(nanos, TimeUnit.NANOSECONDS);
        }
    }

    private static Timer timer(Tags tags, MeterRegistry registry) {
        return Timer.builder(CALLS).description("Calls to the Tidegate server")
            .tag("operation", tags.operation())
            .tag("rule", tags.rule().isEmpty() ? "none" : tags.rule())
            .tag("outcome", tags.outcome().name().toLowerCase(Locale.ROOT))
            .tag("answered", Boolean.toString(tags.answered())).register(registry);
    }
}
