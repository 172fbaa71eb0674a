package io.github.tidegate.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
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
    /** Rules by name. Those given by the program apply until the server reports its own. */
    private final Map<String, LocalRule> configured;
    private volatile Map<String, LocalRule> rules;
    private final ReentrantLock lock = new ReentrantLock();
    private final Map<Name, LocalShare> shares = new HashMap<>();

    /** One limit: the rule, its place there and its notation; an ad-hoc limit has no rule. */
    private record Name(String rule, int index, String notation) {}

    /** Where a check is counted. */
    private record Slot(LocalShare share, int index) {}

    /** What a check costs under one limit. */
    private record Charge(Slot slot, String rule, long cost) {}

    LocalLimiter(OnNoAnswer setting, double share, Map<String, List<String>> limits,
            LongSupplier nanoTime) {
        this.setting = setting;
        this.share = share;
        this.nanoTime = nanoTime;
        Map<String, LocalRule> given = new HashMap<>();
        limits.forEach((name, list) -> given.put(name, LocalRule.of(list)));
        configured = given;
        rules = given;
    }

    /** Takes over the rules of the server; unchanged limits keep their counts. */
    void learn(List<Map<String, Object>> reported) {
        Map<String, LocalRule> learned = new HashMap<>(configured);
        reported.forEach(rule -> learned.put(Json.text(rule, "name"), new LocalRule(rule)));
        Map<String, Set<String>> notations = new HashMap<>();
        learned.forEach((name, rule) -> notations.put(name, rule.notations()));
        lock.lock();
        try {
            rules = learned;
            shares.keySet().removeIf(name -> name.rule() != null
                && !notations.getOrDefault(name.rule(), Set.of()).contains(name.notation()));
        } finally {
            lock.unlock();
        }
    }

    boolean needsRules() {
        return setting == OnNoAnswer.LOCAL;
    }

    /** Decides a check. */
    Decision decide(CheckRequest request) {
        return decide(request, false);
    }

    /** Decides a reservation: without a cost it takes the estimate of the rule. */
    Decision decideReservation(CheckRequest request) {
        return decide(request, true);
    }

    private Decision decide(CheckRequest request, boolean reserves) {
        String rule = request.checks().get(0).name();
        return switch (setting) {
            case ALLOW -> decision(true, 0, 0, Duration.ZERO, 0, rule, Decision.NONE);
            case DENY -> {
                // A peek takes nothing, and the server allows it, too.
                boolean peek = request.checks().stream().allMatch(check -> check.cost() == 0);
                yield decision(peek, 0, 0, NEXT_ATTEMPT, 0, rule, Decision.NONE);
            }
            case LOCAL -> count(request, reserves);
        };
    }

    private Decision count(CheckRequest request, boolean reserves) {
        lock.lock();
        try {
            long now = nanoTime.getAsLong();
            List<Charge> charges = new ArrayList<>(request.checks().size());
            for (Check check : request.checks()) {
                Decision denied = plan(check, reserves, request.usage() != null, charges, now);
                if (denied != null) {
                    return denied;
                }
            }
            // Checks of one slot are judged by their sum, as all of them are charged.
            Map<Slot, Long> totals = new LinkedHashMap<>();
            charges.forEach(one -> totals.merge(one.slot(), one.cost(), LocalLimiter::add));
            Decision denied = denial(charges, totals, now);
            return denied != null ? denied
                : charge(request.checks().get(0).name(), charges, totals, now);
        } finally {
            lock.unlock();
        }
    }

    private static long add(long a, long b) {
        return a > Long.MAX_VALUE - b ? Long.MAX_VALUE : a + b;
    }

    /** Adds what a check costs under each limit; the denial, if that is known without counting. */
    private Decision plan(Check check, boolean reserves, boolean byUsage, List<Charge> charges,
            long now) {
        LocalRule rule = check.rule() == null ? LocalRule.of(List.of(check.limit()))
            : rules.get(check.rule());
        LocalRule.CountedKey key = rule == null ? null : rule.keyOf(check.key());
        if (rule != null && rule.denies(key)) {
            return never(check.name());
        }
        if (rule != null && rule.exempts(key)) {
            return null;
        }
        List<LocalShare> found = rule == null ? null
            : sharesOf(check.rule(), rule.limitsOf(key), now);
        if (found == null || byUsage && !check.hasCost()) {
            // A limit, or a cost by usage, that only the server knows: allowing could exceed it.
            return check.cost() == 0 ? null
                : decision(false, 0, 0, NEXT_ATTEMPT, 0, check.name(), Decision.LOCAL);
        }
        long cost = reserves && !check.hasCost() ? rule.estimate() : check.permits();
        for (LocalShare one : found) {
            charges.add(new Charge(new Slot(one, LocalShare.slot(key.parts())), check.name(), cost));
        }
        return null;
    }

    /** The denial with the longest wait, or null if all fit. */
    private static Decision denial(List<Charge> charges, Map<Slot, Long> totals, long now) {
        long longest = 0;
        Decision denied = null;
        for (Charge one : charges) {
            LocalShare share = one.slot().share();
            long wait = share.wait(one.slot().index(), totals.get(one.slot()), now);
            if (wait > longest) {
                longest = wait;
                denied = denial(one, wait, now);
            }
        }
        return denied;
    }

    private static Decision denial(Charge charge, long wait, long now) {
        LocalShare share = charge.slot().share();
        if (share.capacity() == 0) {
            return never(charge.rule());
        }
        // What exceeds the share may fit the whole limit, once the server answers.
        Duration retry = wait == LocalShare.NEVER ? NEXT_ATTEMPT : Duration.ofNanos(wait);
        int slot = charge.slot().index();
        return decision(false, share.capacity(), share.remaining(slot, now), retry,
            share.reset(slot, now), charge.rule(), Decision.LOCAL);
    }

    private static Decision never(String rule) {
        return Decision.compute(false, true, 0, 0, Duration.ZERO, Duration.ZERO, Duration.ZERO,
            rule, Decision.LOCAL);
    }

    private static Decision charge(String rule, List<Charge> charges, Map<Slot, Long> totals,
            long now) {
        totals.forEach((slot, cost) -> slot.share().charge(slot.index(), cost, now));
        Decision allowed = null;
        for (Charge one : charges) {
            LocalShare share = one.slot().share();
            int slot = one.slot().index();
            long remaining = share.remaining(slot, now);
            if (allowed == null || remaining < allowed.remaining()) {
                allowed = decision(true, share.capacity(), remaining, Duration.ZERO,
                    share.reset(slot, now), one.rule(), Decision.LOCAL);
            }
        }
        return allowed != null ? allowed
            : decision(true, 0, 0, Duration.ZERO, 0, rule, Decision.LOCAL);
    }

    /** The shares of limits, made at their first use; null if one cannot be counted. */
    private List<LocalShare> sharesOf(String rule, List<String> limits, long now) {
        List<LocalShare> result = new ArrayList<>(limits.size());
        for (int i = 0; i < limits.size(); i++) {
            Name name = new Name(rule, i, limits.get(i));
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
