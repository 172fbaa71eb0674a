package io.github.tidegate.it;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.tidegate.testing.RedisProcess;
import io.github.tidegate.testing.ServerProcess;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
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
    private static final long RUN_MICROS = 15_000_000;
    private static final int RUST_CALLERS = 4;

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
            Service http = new Service("--tidegate.url=" + server.url());
            Service resp = new Service("--tidegate.url=" + server.url(),
                "--tidegate.resp-url=" + server.respUrl());
            http.awaitReady();
            resp.awaitReady();
            long end = FleetService.micros() + RUN_MICROS;
            http.runUntil(end);
            resp.runUntil(end);
            logs.add(rust(end, policy, redis.url()));
            logs.add(http.log());
            logs.add(resp.log());
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

    /** A process of {@link FleetService}. */
    private static final class Service {
        private final Process process;
        private final BufferedReader output;

        Service(String... properties) throws IOException {
            List<String> command = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp",
                System.getProperty("java.class.path"), FleetService.class.getName(),
                "--spring.main.banner-mode=off", "--logging.level.root=off",
                "--tidegate.on-no-answer=deny", "--tidegate.deadline=5s",
                "--spring.cloud.gateway.server.webflux.enabled=false"));
            command.addAll(List.of(properties));
            process =
                new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            output = process.inputReader(StandardCharsets.US_ASCII);
        }

        void awaitReady() throws IOException {
            for (String line = ""; !FleetService.READY.equals(line); line = output.readLine()) {
                assertNotNull(line, "the service ended before it was ready");
            }
        }

        void runUntil(long end) throws IOException {
            process.getOutputStream().write((end + "\n").getBytes(StandardCharsets.US_ASCII));
            process.getOutputStream().flush();
        }

        List<Admitted> log() throws Exception {
            List<Admitted> log = new ArrayList<>();
            for (String line = output.readLine(); line != null; line = output.readLine()) {
                String[] times = line.split(" ");
                log.add(new Admitted(Long.parseLong(times[0]), Long.parseLong(times[1])));
            }
            assertEquals(0, process.waitFor());
            return log;
        }
    }

    private static List<Admitted> rust(long end, Path policy, String store) {
        List<CompletableFuture<List<Admitted>>> callers = new ArrayList<>();
        for (int i = 0; i < RUST_CALLERS; i++) {
            callers.add(CompletableFuture.supplyAsync(() -> checks(end, policy, store),
                task -> new Thread(task).start()));
        }
        return callers.stream().flatMap(caller -> caller.join().stream()).toList();
    }

    /** One process for each check. Exit status 0 is allowed, 1 denied. */
    private static List<Admitted> checks(long end, Path policy, String store) {
        List<Admitted> log = new ArrayList<>();
        while (FleetService.micros() < end) {
            long before = FleetService.micros();
            try {
                Process check = new ProcessBuilder(ServerProcess.binary(), "check", "shared",
                    "everyone", "--store", store, "--config", policy.toString())
                    .redirectErrorStream(true).start();
                String output = new String(check.getInputStream().readAllBytes(),
                    StandardCharsets.UTF_8);
                int status = check.waitFor();
                assertTrue(status < 2, output);
                if (status == 0) {
                    log.add(new Admitted(before, FleetService.micros()));
                }
            } catch (IOException | InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
        return log;
    }
}
