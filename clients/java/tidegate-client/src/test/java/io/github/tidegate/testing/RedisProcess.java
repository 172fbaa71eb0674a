package io.github.tidegate.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;

/** A {@code redis-server} without persistence on a free port, which it keeps over restarts. */
public final class RedisProcess implements AutoCloseable {
    private final int port;
    private Process process;

    public RedisProcess() {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = socket.getLocalPort();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        start();
    }

    /** Starts the process, empty. */
    public void start() {
        try {
            Path folder = Files.createTempDirectory("tidegate-redis");
            folder.toFile().deleteOnExit();
            process = new ProcessBuilder("redis-server", "--port", Integer.toString(port), "--bind",
                "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder.toString())
                .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        Processes.await("Redis listens", process, () -> {
            try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
                return socket;
            } catch (IOException e) {
                return null;
            }
        });
    }

    public String url() {
        return "redis://127.0.0.1:" + port;
    }

    /** Ends the process with SIGKILL. */
    public void kill() {
        Processes.kill(process);
    }

    @Override
    public void close() {
        kill();
    }
}
