package io.github.tidegate.client;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisCredentials;
import io.lettuce.core.RedisCredentialsProvider;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ArrayOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** Checks over RESP with Lettuce: all callers share one connection and are pipelined. */
final class RespTransport {
    private final RedisClient client;
    private final RedisURI uri;
    /** The connection, present or being made; null if the next check has to make one. */
    private final AtomicReference<CompletableFuture<StatefulRedisConnection<String, String>>>
        connection = new AtomicReference<>();

    /** Commands and options of the server that Lettuce has no method for. */
    @SuppressWarnings("deprecation") // name() of the interface, which enums have anyway
    private enum Keyword implements ProtocolKeyword {
        CHECK("TG.CHECK"), LIMIT("TG.LIMIT"), COST("COST");

        private final byte[] bytes;

        Keyword(String name) {
            this.bytes = name.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public byte[] getBytes() {
            return bytes;
        }
    }

    RespTransport(String url, String token, Duration connectTimeout) {
        uri = RedisURI.create(url);
        uri.setTimeout(connectTimeout);
        if (!token.isEmpty()) {
            uri.setCredentialsProvider(
                RedisCredentialsProvider.from(() -> RedisCredentials.just(null, token)));
        }
        client = RedisClient.create();
        // This class reconnects by itself, so that a probe of an open circuit is a new connection.
        client.setOptions(ClientOptions.builder().autoReconnect(false)
            .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
            .socketOptions(SocketOptions.builder().connectTimeout(connectTimeout).build()).build());
    }

    /** The eight elements; fails with {@link RefusedException} or {@link NoAnswerException}. */
    CompletableFuture<Decision> check(Check check) {
        CompletableFuture<Decision> result = new CompletableFuture<>();
        connected().whenComplete((redis, error) -> {
            if (error != null) {
                result.completeExceptionally(failure(error));
            } else if (!result.isDone()) {
                send(redis, check, result);
            }
        });
        return result;
    }

    /** Opens the connection and waits for a first reply. */
    CompletableFuture<String> ping() {
        CompletableFuture<String> result = new CompletableFuture<>();
        connected().thenCompose(redis -> redis.async().ping()).whenComplete((reply, error) -> {
            if (error != null) {
                result.completeExceptionally(failure(error));
            } else {
                result.complete(reply);
            }
        });
        return result;
    }

    private static void send(StatefulRedisConnection<String, String> redis, Check check,
            CompletableFuture<Decision> result) {
        CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8)
            .add(check.rule() == null ? check.limit() : check.rule()).add(check.key().get(0));
        if (check.hasCost()) {
            args.add(Keyword.COST).add(check.cost());
        }
        var command = new AsyncCommand<>(new Command<>(
            check.rule() == null ? Keyword.LIMIT : Keyword.CHECK,
            new ArrayOutput<>(StringCodec.UTF8), args));
        command.whenComplete((reply, error) -> {
            if (error != null) {
                result.completeExceptionally(failure(error));
            } else {
                result.complete(Decision.of((List<?>) reply));
            }
        });
        result.whenComplete((decision, error) -> {
            if (result.isCancelled()) {
                command.cancel();
            }
        });
        try {
            redis.dispatch(command);
        } catch (RuntimeException e) {
            result.completeExceptionally(failure(e));
        }
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> connected() {
        var current = connection.get();
        if (current != null && !current.isCompletedExceptionally()
            && (!current.isDone() || current.join().isOpen())) {
            return current;
        }
        var made = new CompletableFuture<StatefulRedisConnection<String, String>>();
        if (!connection.compareAndSet(current, made)) {
            return connected();
        }
        if (current != null) {
            close(current);
        }
        client.connectAsync(StringCodec.UTF8, uri).whenComplete((redis, error) -> {
            if (error != null) {
                made.completeExceptionally(error);
            } else if (!made.complete(redis)) {
                redis.closeAsync();
            }
        });
        return made;
    }

    /** Drops the connection; the next check makes a new one. */
    void reset() {
        var dropped = connection.getAndSet(null);
        if (dropped != null) {
            dropped.cancel(false);
            close(dropped);
        }
    }

    private static void close(CompletableFuture<StatefulRedisConnection<String, String>> old) {
        old.whenComplete((redis, error) -> {
            // Lettuce closes a connection that was lost by itself.
            if (redis != null && redis.isOpen()) {
                redis.closeAsync();
            }
        });
    }

    /** Closes the connection with the client: closing it before, too, would log a warning. */
    void shutdown() {
        client.shutdownAsync(0, 1, TimeUnit.SECONDS);
    }

    private static TidegateException failure(Throwable error) {
        Throwable cause = error;
        while (cause.getCause() != null && (cause instanceof CompletionException
            || !(cause instanceof RedisCommandExecutionException))) {
            cause = cause.getCause();
        }
        if (cause instanceof RedisCommandExecutionException) {
            String message = String.valueOf(cause.getMessage());
            String kind = message.split(" ", 2)[0];
            switch (kind) {
                case "NOAUTH", "WRONGPASS":
                    return new RefusedException(401, "", message);
                case "NORULE":
                    return new RefusedException(404, "rule", message);
                case "ERR":
                    // The listener is full: as with HTTP's 503, no decision was made.
                    return message.contains("max number of clients")
                        ? new NoAnswerException(503, message)
                        : new RefusedException(400, "", message);
                default:
                    return new NoAnswerException(503, message);
            }
        }
        return new NoAnswerException("no answer from the server: " + error, error);
    }
}
