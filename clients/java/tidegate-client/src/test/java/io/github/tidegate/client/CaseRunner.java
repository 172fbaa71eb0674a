package io.github.tidegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.github.tidegate.testing.RedisProcess;
import io.github.tidegate.testing.ServerProcess;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Runs the steps of one shared case against its own server and Redis. */
final class CaseRunner implements AutoCloseable {
    private static final long UNTIL_NANOS = 30_000_000_000L;
    /** Servers of cases that leave their server alone, by token. */
    private static final Map<String, ServerProcess> SHARED = new HashMap<>();

    private final Map<String, Object> settings;
    private final boolean overResp;
    private final RedisProcess redis;
    private final ServerProcess server;
    private final boolean shared;
    private final Map<String, Reservation> saved = new HashMap<>();
    private TidegateClient client;

    @SuppressWarnings("unchecked")
    CaseRunner(Map<String, Object> one, boolean overResp) {
        this.settings = (Map<String, Object>) one.get("client");
        this.overResp = overResp;
        Map<String, Object> wanted = (Map<String, Object>) one.get("server");
        redis = wanted.get("store").equals("redis") ? new RedisProcess() : null;
        String token = (String) wanted.get("token");
        shared = redis == null
            && Json.objects(one, "steps").stream().noneMatch(step -> step.containsKey("do"));
        server = shared ? SHARED.computeIfAbsent(String.valueOf(token), name -> start(null, token))
            : start(redis, token);
    }

    private static ServerProcess start(RedisProcess redis, String token) {
        ServerProcess server =
            ServerProcess.start(ServerProcess.repositoryFile("clients/policy.yaml"),
                redis == null ? "memory" : redis.url(), token);
        server.awaitStore();
        return server;
    }

    static void closeShared() {
        SHARED.values().forEach(ServerProcess::close);
        SHARED.clear();
    }

    void run(Map<String, Object> step) throws Exception {
        if (step.get("do") instanceof String action) {
            act(action, step);
        } else if (step.get("error") instanceof Map<?, ?> error) {
            RuntimeException thrown = assertThrows(RuntimeException.class, () -> call(step));
            CasesTest.compare(step + " error", error, describe(thrown));
        } else if (step.get("until") instanceof Map<?, ?> until) {
            callUntil(step, until);
        } else {
            Map<String, Object> result = call(step);
            CasesTest.compare(step.toString(), step.getOrDefault("expect", Map.of()), result);
        }
    }

    private void callUntil(Map<String, Object> step, Map<?, ?> wanted) throws Exception {
        long end = System.nanoTime() + UNTIL_NANOS;
        while (true) {
            try {
                CasesTest.compare(step.toString(), wanted, call(step));
                return;
            } catch (AssertionError e) {
                if (System.nanoTime() > end) {
                    throw e;
                }
                Thread.sleep(50);
            }
        }
    }

    private void act(String action, Map<String, Object> step) throws InterruptedException {
        switch (action) {
            case "stop_store" -> redis.kill();
            case "start_store" -> redis.start();
            case "kill_server" -> server.kill();
            case "start_server" -> server.start();
            case "freeze_server" -> server.freeze();
            case "thaw_server" -> server.thaw();
            case "sleep" -> Thread.sleep((Long) step.get("ms"));
            default -> throw new IllegalArgumentException(action);
        }
    }

    private Map<String, Object> call(Map<String, Object> step) {
        return switch ((String) step.get("call")) {
            case "load_limits" -> {
                client().loadLimits();
                yield Map.of();
            }
            case "check" -> describe(client().check(request(step)));
            case "reserve" -> {
                Reservation made = client().reserve(request(step));
                saved.put((String) step.get("save"), made);
                Map<String, Object> result = describe(made.decision());
                result.put("reservation", made.id().isEmpty() ? null : made.id());
                result.put("expires_in_ms", made.expiresIn().toMillis());
                yield result;
            }
            case "commit" -> describe(commit(step));
            case "cancel" -> describe(reservation(step).cancel());
            default -> throw new IllegalArgumentException(step.toString());
        };
    }

    @SuppressWarnings("unchecked")
    private Settlement commit(Map<String, Object> step) {
        Reservation reservation = reservation(step);
        if (step.get("usage") instanceof Map<?, ?> usage) {
            return reservation.commit((String) step.get("model"), (Map<String, Object>) usage);
        }
        return step.get("costs") instanceof Map<?, ?> costs
            ? reservation.commit((Map<String, Long>) costs)
            : reservation.commit((Long) step.get("cost"));
    }

    private Reservation reservation(Map<String, Object> step) {
        return step.get("reservation") instanceof Map<?, ?> given
            ? client().reservation((String) given.get("id")) : saved.get(step.get("reservation"));
    }

    @SuppressWarnings("unchecked")
    private static CheckRequest request(Map<String, Object> step) {
        List<Check> checks = new ArrayList<>();
        if (step.containsKey("checks")) {
            Json.objects(step, "checks").forEach(one -> checks.add(check(one)));
        } else {
            checks.add(check(step));
        }
        CheckRequest request = CheckRequest.of(checks.toArray(Check[]::new));
        if (step.get("id") instanceof String id) {
            request = request.id(id);
        }
        if (step.get("ttl_ms") instanceof Long ttl) {
            request = request.ttl(Duration.ofMillis(ttl));
        }
        if (step.get("usage") instanceof Map<?, ?> usage) {
            request = request.usage((String) step.get("model"), (Map<String, Object>) usage);
        }
        return request;
    }

    private static Check check(Map<String, Object> fields) {
        Object key = fields.get("key");
        List<String> parts = key instanceof List<?> list
            ? list.stream().map(String.class::cast).toList()
            : key == null ? List.of() : List.of((String) key);
        return new Check((String) fields.get("rule"), (String) fields.get("limit"), parts,
            fields.get("cost") instanceof Long cost ? cost : -1);
    }

    private static Map<String, Object> describe(Decision decision) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("allowed", decision.allowed());
        result.put("limit", decision.limit());
        result.put("remaining", decision.remaining());
        result.put("retry_after_ms", decision.never() ? null
            : decision.retryAfter().map(Duration::toMillis).orElse(0L));
        result.put("never", decision.never());
        result.put("rule", decision.rule());
        result.put("source", decision.source());
        return result;
    }

    private static Map<String, Object> describe(Settlement settlement) {
        List<Map<String, Object>> rules = new ArrayList<>();
        for (Settlement.Charge charge : settlement.rules()) {
            rules.add(Map.of("rule", charge.rule(), "reserved", charge.reserved(), "charged",
                charge.charged(), "uncharged", charge.uncharged(), "limit", charge.limit(),
                "remaining", charge.remaining()));
        }
        return Map.of("settled", settlement.settled(), "late", settlement.late(), "overdrawn",
            settlement.overdrawn(), "rules", rules);
    }

    private static Map<String, Object> describe(RuntimeException thrown) {
        if (thrown instanceof IllegalArgumentException) {
            return Map.of("kind", "invalid", "field", thrown.getMessage().split(" ")[0]);
        }
        if (thrown instanceof NoAnswerException none) {
            return Map.of("kind", "no_answer", "status", (long) none.status());
        }
        RefusedException refused = (RefusedException) thrown;
        String kind = switch (refused.status()) {
            case 400 -> "invalid";
            case 401 -> "unauthorized";
            case 404 -> refused.field().equals("rule") ? "unknown_rule" : "unknown_reservation";
            case 409 -> "conflict";
            default -> "other";
        };
        return Map.of("kind", kind, "status", (long) refused.status(), "field", refused.field());
    }

    /** Made at the first call: by then a case may have stopped the server. */
    @SuppressWarnings("unchecked")
    private TidegateClient client() {
        if (client == null) {
            Object share = settings.getOrDefault("local_share", 0.5);
            TidegateClientBuilder builder = TidegateClient.builder().url(server.url())
                .respUrl(overResp ? server.respUrl() : null)
                .token((String) settings.get("token"))
                .deadline(Duration.ofMillis((Long) settings.getOrDefault("deadline_ms", 5000L)))
                .onNoAnswer(OnNoAnswer.valueOf(
                    ((String) settings.get("on_no_answer")).toUpperCase(java.util.Locale.ROOT)))
                .localShare(((Number) share).doubleValue());
            if (settings.get("limits") instanceof Map<?, ?> limits) {
                builder.limits((Map<String, List<String>>) limits);
            }
            client = builder.build();
            assertEquals(false, client.circuitOpen());
        }
        return client;
    }

    @Override
    public void close() {
        if (client != null) {
            client.close();
        }
        if (!shared) {
            server.close();
        }
        if (redis != null) {
            redis.close();
        }
    }
}
