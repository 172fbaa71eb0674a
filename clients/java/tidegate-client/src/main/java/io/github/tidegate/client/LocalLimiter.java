package io.github.tidegate.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongSupplier;

/**
 * Decides without the server: allows, denies, or counts a share of each limit in this process. The
 * limits are those last read from the server, or given by the program.
 */
final class LocalLimiter {
    static final int MAX_LIMITS = 256;
    /** When to retry after a denial whose end is not known: the server may be back then. */
    private static final Duration NEXT_ATTEMPT = Duration.ofSeconds(1);

    private final OnNoAnswer setting;
    private final double share;
    private final LongSupplier nanoTime;
    /** Limits by rule. Rules given by the program are kept until the server reports its own. */
    private final Map<String, List<String>> rules = new ConcurrentHashMap<>();
    private final ReentrantLock lock = new ReentrantLock();
    private final Map<Name, LocalShare> shares = new HashMap<>();

    /** One limit: the rule, its place there and its notation; an ad-hoc limit has no rule. */
    private record Name(String rule, int index, String notation) {}

    LocalLimiter(OnNoAnswer setting, double share, LongSupplier nanoTime) {
        this.setting = setting;
        this.share = share;
        this.nanoTime = nanoTime;
    }

    /** Sets the limits of rules; other rules are kept, and so are counts of unchanged limits. */
    void setRules(Map<String, List<String>> limits) {
        rules.putAll(limits);
        lock.lock();
        try {
            shares.keySet().removeIf(name -> name.rule() != null
                && !rules.getOrDefault(name.rule(), List.of()).contains(name.notation()));
        } finally {
            lock.unlock();
        }
    }

    boolean needsRules() {
        return setting == OnNoAnswer.LOCAL;
    }

    Decision decide(CheckRequest request) {
        String rule = request.checks().get(0).name();
        return switch (setting) {
            case ALLOW -> decision(true, 0, 0, Duration.ZERO, 0, rule, Decision.NONE);
            case DENY -> {
                // A peek takes nothing, and the server allows it, too.
                boolean peek = request.checks().stream().allMatch(check -> check.cost() == 0);
                yield decision(peek, 0, 0, NEXT_ATTEMPT, 0, rule, Decision.NONE);
            }
            case LOCAL -> count(request);
        };
    }

    private Decision count(CheckRequest request) {
        lock.lock();
        try {
            long now = nanoTime.getAsLong();
            List<List<LocalShare>> found = new ArrayList<>(request.checks().size());
            for (Check check : request.checks()) {
                List<LocalShare> counted = request.usage() != null && !check.hasCost()
                    ? null : sharesOf(check, now);
                if (counted == null) {
                    // A limit, or a cost by usage, that only the server knows: allowing could
                    // exceed it.
                    return decision(false, 0, 0, NEXT_ATTEMPT, 0, check.name(), Decision.LOCAL);
                }
                found.add(counted);
            }
            Decision denied = denial(request, found, now);
            return denied != null ? denied : charge(request, found, now);
        } finally {
            lock.unlock();
        }
    }

    /** The denial with the longest wait, or null if all fit. */
    private static Decision denial(CheckRequest request, List<List<LocalShare>> found, long now) {
        long longest = 0;
        Decision denied = null;
        for (int i = 0; i < found.size(); i++) {
            Check check = request.checks().get(i);
            for (LocalShare share : found.get(i)) {
                long wait = share.wait(check.key(), check.permits(), now);
                if (wait <= longest) {
                    continue;
                }
                longest = wait;
                denied = denial(check, share, wait, now);
            }
        }
        return denied;
    }

    private static Decision denial(Check check, LocalShare share, long wait, long now) {
        if (share.capacity() == 0) {
            return Decision.compute(false, true, 0, 0, Duration.ZERO, Duration.ZERO, Duration.ZERO,
                check.name(), Decision.LOCAL);
        }
        // What exceeds the share may fit the whole limit, once the server answers.
        Duration retry = wait == LocalShare.NEVER ? NEXT_ATTEMPT : Duration.ofNanos(wait);
        return decision(false, share.capacity(), share.remaining(check.key(), now), retry,
            share.reset(check.key(), now), check.name(), Decision.LOCAL);
    }

    private static Decision charge(CheckRequest request, List<List<LocalShare>> found, long now) {
        Decision allowed = null;
        for (int i = 0; i < found.size(); i++) {
            Check check = request.checks().get(i);
            for (LocalShare share : found.get(i)) {
                share.charge(check.key(), check.permits(), now);
                long remaining = share.remaining(check.key(), now);
                if (allowed == null || remaining < allowed.remaining()) {
                    allowed = decision(true, share.capacity(), remaining, Duration.ZERO,
                        share.reset(check.key(), now), check.name(), Decision.LOCAL);
                }
            }
        }
        return allowed != null ? allowed : decision(true, 0, 0, Duration.ZERO, 0,
            request.checks().get(0).name(), Decision.LOCAL);
    }

    /** The shares of a check, made at their first use; null if a limit is not known. */
    private List<LocalShare> sharesOf(Check check, long now) {
        List<String> limits =
            check.rule() == null ? List.of(check.limit()) : rules.get(check.rule());
        if (limits == null) {
            return null;
        }
        List<LocalShare> result = new ArrayList<>(limits.size());
        for (int i = 0; i < limits.size(); i++) {
            Name name = new Name(check.rule(), i, limits.get(i));
            LocalShare known = shares.get(name);
            if (known == null) {
                LocalLimit limit = LocalLimit.parse(name.notation());
                if (limit == null || shares.size() >= MAX_LIMITS) {
                    return null;
                }
                known = new LocalShare(limit, share, now);
                shares.put(name, known);
            }
            result.add(known);
        }
        return result;
    }

    private static Decision decision(boolean allowed, long limit, long remaining, Duration retry,
            long resetNanos, String rule, String source) {
        return Decision.compute(allowed, false, limit, remaining, wholeMillis(retry.toNanos()),
            wholeMillis(resetNanos), Duration.ZERO, rule, source);
    }

    /** Waits are whole milliseconds, rounded up, as the server's. */
    private static Duration wholeMillis(long nanos) {
        return Duration.ofMillis((nanos + 999_999) / 1_000_000);
    }
}
