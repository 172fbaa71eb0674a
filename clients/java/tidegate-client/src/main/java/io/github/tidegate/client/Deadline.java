package io.github.tidegate.client;

import java.time.Duration;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Bounds the time of calls. A call that is late is cancelled. */
final class Deadline implements AutoCloseable {
    private final ScheduledExecutorService timer;
    private final ExecutorService executor;
    /** Calls that have not ended, to be ended by {@link #close}. */
    private final Set<CompletableFuture<?>> open = ConcurrentHashMap.newKeySet();
    private volatile boolean closed;

    /**
     * Ends futures that are late in {@code executor}: their callbacks never run in the timer. It
     * must not be the executor of the calls, which they may block.
     */
    Deadline(ScheduledExecutorService timer, ExecutorService executor) {
        this.timer = timer;
        this.executor = executor;
    }

    /** Ends the calls in flight without an answer, and both executors. */
    @Override
    public void close() {
        closed = true;
        timer.shutdownNow();
        if (!executor.isShutdown()) {
            executor.execute(() -> open.forEach(Deadline::endClosed));
            executor.shutdown();
        }
    }

    private static void endClosed(CompletableFuture<?> call) {
        call.completeExceptionally(new NoAnswerException("the client is closed", null));
    }

    /** Waits for the call; throws its {@link TidegateException}, or that there was no answer. */
    static <T> T await(CompletableFuture<T> call, Duration limit) {
        try {
            return call.get(limit.toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            call.cancel(true);
            throw late(limit);
        } catch (InterruptedException e) {
            call.cancel(true);
            Thread.currentThread().interrupt();
            throw new NoAnswerException("interrupted", e);
        } catch (ExecutionException | CancellationException e) {
            throw asTidegate(e);
        }
    }

    /** The call, ended without an answer when it is late. */
    <T> CompletableFuture<T> within(CompletableFuture<T> call, Duration limit) {
        CompletableFuture<T> bounded = new CompletableFuture<>();
        open.add(bounded);
        Future<?> timeout = schedule(() -> bounded.completeExceptionally(late(limit)), limit);
        bounded.whenComplete((value, error) -> {
            open.remove(bounded);
            timeout.cancel(false);
            // No effect on a call that has ended.
            call.cancel(true);
        });
        call.whenComplete((value, error) -> {
            if (error == null) {
                bounded.complete(value);
            } else {
                bounded.completeExceptionally(asTidegate(error));
            }
        });
        if (closed) {
            endClosed(bounded);
        }
        return bounded;
    }

    private Future<?> schedule(Runnable late, Duration limit) {
        try {
            return timer.schedule(() -> executor.execute(late), limit.toNanos(),
                TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException e) {
            // The client was closed, and so the call is ended.
            return CompletableFuture.completedFuture(null);
        }
    }

    static TidegateException asTidegate(Throwable error) {
        Throwable cause = error;
        while ((cause instanceof CompletionException || cause instanceof ExecutionException)
            && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause instanceof TidegateException known ? known
            : new NoAnswerException("no answer from the server: " + cause, cause);
    }

    private static NoAnswerException late(Duration limit) {
        return new NoAnswerException("no answer within " + limit.toMillis() + " ms", null);
    }
}
