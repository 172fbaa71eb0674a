package io.github.tidegate.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** A {@code tidegate serve} on free ports, which it keeps over restarts. */
public final class ServerProcess implements AutoCloseable {
    private static final Pattern LISTENING = Pattern.compile(
        "\"listening\",\"http\":\"127.0.0.1:(\\d+)\",\"resp\":\"127.0.0.1:(\\d+)\"");

    private final List<String> arguments;
    private final Map<String, String> environment;
    private Process process;
    private int httpPort;
    private int respPort;

    private ServerProcess(List<String> arguments, Map<String, String> environment) {
        this.arguments = arguments;
        this.environment = environment;
        start();
    }

    /** A server with this policy and store ({@code memory} or a URL), and a token if any. */
    public static ServerProcess start(Path policy, String store, String token) {
        return new ServerProcess(List.of("--config", policy.toString(), "--store", store),
            token == null ? Map.of() : Map.of("TIDEGATE_TOKEN", token));
    }

    /** A server in memory with this policy. */
    public static ServerProcess withPolicy(String yaml) {
        try {
            Path file = Files.createTempFile("tidegate-policy", ".yaml");
            file.toFile().deleteOnExit();
            Files.writeString(file, yaml);
            return start(file, "memory", null);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** The file of the repository at this path below its root. */
    public static Path repositoryFile(String path) {
        for (Path at = Path.of("").toAbsolutePath(); at != null; at = at.getParent()) {
            if (Files.exists(at.resolve("Cargo.lock")) && Files.exists(at.resolve("clients"))) {
                return at.resolve(path);
            }
        }
        throw new IllegalStateException("not inside the repository");
    }

    /** The program under test. */
    public static String binary() {
        String given = System.getenv("TIDEGATE_BIN");
        return given != null ? given : repositoryFile("target/debug/tidegate").toString();
    }

    /** Starts the process, on the ports it had before if any. */
    public void start() {
        try {
            Path log = Files.createTempFile("tidegate-server", ".log");
            log.toFile().deleteOnExit();
            List<String> command = new ArrayList<>(List.of(binary(), "serve"));
            command.addAll(arguments);
            command.addAll(List.of("--http", "127.0.0.1:" + httpPort, "--resp",
                "127.0.0.1:" + respPort, "--grpc", "127.0.0.1:0"));
            ProcessBuilder builder =
                new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile());
            builder.environment().putAll(environment);
            process = builder.start();
            Matcher ports = Processes.await("the server listens", process, () -> {
                Matcher found = LISTENING.matcher(Files.readString(log));
                return found.find() ? found : null;
            });
            httpPort = Integer.parseInt(ports.group(1));
            respPort = Integer.parseInt(ports.group(2));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Waits until the server has reached its store. */
    public void awaitStore() {
        HttpRequest health = HttpRequest.newBuilder(URI.create(url() + "/healthz")).build();
        Processes.await("the server has its store", process, () -> HttpClient.newHttpClient()
            .send(health, BodyHandlers.ofString()).body().contains("\"status\":\"ok\"")
                ? Boolean.TRUE : null);
    }

    public String url() {
        return "http://127.0.0.1:" + httpPort;
    }

    public String respUrl() {
        return "redis://127.0.0.1:" + respPort;
    }

    /** Ends the process with SIGKILL. */
    public void kill() {
        Processes.kill(process);
    }

    /** Stops every thread of the process. */
    public void freeze() {
        Processes.signal(process, "STOP");
        Processes.await("the server is stopped", process,
            () -> allThreadsStopped() ? Boolean.TRUE : null);
    }

    /** Lets a stopped process go on. */
    public void thaw() {
        Processes.signal(process, "CONT");
    }

    private boolean allThreadsStopped() throws IOException {
        try (Stream<Path> tasks = Files.list(Path.of("/proc/" + process.pid() + "/task"))) {
            for (Path task : tasks.toList()) {
                String stat = Files.readString(task.resolve("stat"));
                if (stat.charAt(stat.lastIndexOf(')') + 2) != 'T') {
                    return false;
                }
            }
        }
        return true;
    }

    @Override
    public void close() {
        if (process.isAlive()) {
            process.destroyForcibly();
            try {
                process.waitFor(10, TimeUnit.SECONDS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
