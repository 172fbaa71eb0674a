package io.github.tidegate.it;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.tidegate.testing.RedisProcess;
import io.github.tidegate.testing.ServerProcess;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * Two Java services, one over HTTP and one over RESP, and a Rust program that counts in the same
 * Redis by itself: {@code tidegate check --store}.
 */
@Tag("fleet")
class FleetTest {
    private static final int LIMIT = 40;
    private static final long WINDOW_MICROS = 1_000_000;
    private static final long RUN_MICROS = 20_000_000;

    private record Admitted(long before, long after) {}

    @Test
    void services_in_java_and_rust_admit_no_more_than_the_rule_in_any_interval() throws Exception {
        Path policy = Files.createTempFile("fleet", ".yaml");
        Files.writeString(policy, "secret: 0123456789abcdef0123456789abcdef\nrules:\n"
            + "  - { name: shared, key: [\"header:x\"], on_store_failure: deny,\n"
            + "      limits: [\"sliding-log " + LIMIT + "/1s\"] }\n");
        List<List<Admitted>> logs = new ArrayList<>();
        try (RedisProcess redis = new RedisProcess();
            ServerProcess server = ServerProcess.start(policy, redis.url(), null)) {
            server.awaitStore();
            long end = FleetService.micros() + RUN_MICROS;
            Process http = service(end, "--tidegate.url=" + server.url());
            Process resp = service(end, "--tidegate.url=" + server.url(),
                "--tidegate.resp-url=" + server.respUrl());
            logs.add(rust(end, policy, redis.url()));
            logs.add(read(http));
            logs.add(read(resp));
        }
        List<Admitted> all = logs.stream().flatMap(List::stream)
            .sorted((a, b) -> Long.compare(a.before(), b.before())).toList();
        long worst = 0;
        for (int from = 0; from < all.size(); from++) {
            long start = all.get(from).before();
            // Calls that lie within the interval as a whole: their decisions do, too.
            long inside = all.stream().filter(one -> one.before() >= start
                && one.after() <= start + WINDOW_MICROS).count();
            worst = Math.max(worst, inside);
        }
        System.out.printf("fleet: %d admitted in %d s by Rust %d, Java over HTTP %d, Java over "
            + "RESP %d; at most %d in any second, limit %d%n", all.size(), RUN_MICROS / 1_000_000,
            logs.get(0).size(), logs.get(1).size(), logs.get(2).size(), worst, LIMIT);
        assertTrue(worst <= LIMIT, "admitted " + worst + " in a second");
        logs.forEach(log -> assertFalse(log.isEmpty(), "every service is admitted sometimes"));
    }

    private static Process service(long end, String... properties) throws Exception {
        List<String> command = new ArrayList<>(List.of(
            Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp",
            System.getProperty("java.class.path"), FleetService.class.getName(),
            Long.toString(end), "--spring.main.banner-mode=off", "--logging.level.root=warn",
            "--tidegate.on-no-answer=deny", "--tidegate.deadline=5s",
            "--spring.cloud.gateway.server.webflux.enabled=false"));
        command.addAll(List.of(properties));
        return new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    }

    private static List<Admitted> read(Process service) throws Exception {
        List<Admitted> log = new ArrayList<>();
        boolean started = false;
        for (String line : new String(service.getInputStream().readAllBytes()).split("\n")) {
            if (started && !line.isBlank()) {
                String[] times = line.trim().split(" ");
                log.add(new Admitted(Long.parseLong(times[0]), Long.parseLong(times[1])));
            }
            started |= line.equals("log");
        }
        assertEquals(0, service.waitFor());
        return log;
    }

    /** One process for each check. Exit status 0 is allowed, 1 denied. */
    private static List<Admitted> rust(long end, Path policy, String store) throws Exception {
        List<Admitted> log = new ArrayList<>();
        while (FleetService.micros() < end) {
            long before = FleetService.micros();
            Process check = new ProcessBuilder(ServerProcess.binary(), "check", "shared",
                "everyone", "--store", store, "--config", policy.toString())
                .redirectErrorStream(true).start();
            String output = new String(check.getInputStream().readAllBytes());
            int status = check.waitFor();
            assertTrue(status < 2, output);
            if (status == 0) {
                log.add(new Admitted(before, FleetService.micros()));
            }
        }
        return log;
    }
}
