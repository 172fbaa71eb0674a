package io.github.tidegate.client;

import java.time.Duration;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Bounds the time of calls. A call that is late is cancelled. */
final class Deadline {
    private final ScheduledExecutorService timer;
    private final Executor executor;

    /** Ends futures that are late in {@code executor}: their callbacks never run in the timer. */
    Deadline(ScheduledExecutorService timer, Executor executor) {
        this.timer = timer;
        this.executor = executor;
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
        Future<?> timeout = timer.schedule(() -> executor.execute(() -> {
            if (bounded.completeExceptionally(late(limit))) {
                call.cancel(true);
            }
        }), limit.toNanos(), TimeUnit.NANOSECONDS);
        call.whenComplete((value, error) -> {
            timeout.cancel(false);
            if (error == null) {
                bounded.complete(value);
            } else {
                bounded.completeExceptionally(asTidegate(error));
            }
        });
        return bounded;
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
