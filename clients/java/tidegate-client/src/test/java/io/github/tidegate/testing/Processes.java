package io.github.tidegate.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.concurrent.Callable;

/** What both kinds of processes need. */
final class Processes {
    private static final long PATIENCE_MS = 30_000;

    private Processes() {}

    /** Waits until the condition has a value, for half a minute at most. */
    static <T> T await(String what, Process process, Callable<T> condition) {
        long end = System.nanoTime() + PATIENCE_MS * 1_000_000;
        try {
            while (System.nanoTime() < end) {
                T value = condition.call();
                if (value != null) {
                    return value;
                }
                if (!process.isAlive()) {
                    throw new IllegalStateException("the process ended before " + what);
                }
                Thread.sleep(10);
            }
        } catch (Exception e) {
            throw new IllegalStateException("while waiting until " + what, e);
        }
        throw new IllegalStateException("waited too long until " + what);
    }

    static void kill(Process process) {
        process.destroyForcibly();
        try {
            process.waitFor();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    static void signal(Process process, String name) {
        try {
            String pid = Long.toString(process.pid());
            int status = new ProcessBuilder("kill", "-" + name, pid).start().waitFor();
            if (status != 0) {
                throw new IllegalStateException("kill -" + name + " failed");
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
