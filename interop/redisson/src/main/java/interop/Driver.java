package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateLimiterConfig;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Runs commands of a test on a real Redisson, one command per line:
 *
 * <pre>
 * number TAB operation TAB argument ..   ->   number TAB (ok | error) TAB reply
 * </pre>
 *
 * Commands run concurrently, so that one that waits does not delay others. A race reports every permit before its
 * reply, as {@code number TAB permit TAB start TAB end}, in microseconds of the system clock.
 */
public final class Driver {
    private final RedissonClient redisson;
    private final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private final ExecutorService workers = Executors.newCachedThreadPool();

    private Driver(RedissonClient redisson) {
        this.redisson = redisson;
    }

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.setThreads(2).setNettyThreads(2);
        if (args[0].equals("cluster")) {
            config.useClusterServers().addNodeAddress(args[1]).setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(0);
        } else {
            config.useSingleServer().setAddress(args[1]).setConnectionPoolSize(8)
                .setConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(0);
        }
        RedissonClient redisson = Redisson.create(config);
        new Driver(redisson).serve();
        // Exits without waiting for threads that still wait for a permit.
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws IOException {
        print("0", "ok", redisson.getId());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            workers.execute(() -> reply(words));
        }
    }

    private void reply(String[] words) {
        try {
            print(words[0], "ok", run(words));
        } catch (Exception e) {
            Throwable cause = e instanceof InvocationTargetException ? e.getCause() : e;
            print(words[0], "error", String.valueOf(cause.getMessage()).replaceAll("\\s+", " "));
        }
    }

    private synchronized void print(String... words) {
        out.println(String.join("\t", words));
        out.flush();
    }

    private String run(String[] words) throws Exception {
        RRateLimiter limiter = redisson.getRateLimiter(words[2]);
        switch (words[1]) {
            case "trySetRate":
                return "" + limiter.trySetRate(mode(words[3]), number(words[4]), millis(words[5]), millis(words[6]));
            case "setRate":
                limiter.setRate(mode(words[3]), number(words[4]), millis(words[5]), millis(words[6]));
                return "";
            case "updateRate":
                return update(limiter, mode(words[3]), number(words[4]), millis(words[5]));
            case "tryAcquire":
                return "" + limiter.tryAcquire(number(words[3]));
            case "tryAcquireFor":
                return "" + limiter.tryAcquire(number(words[3]), millis(words[4]));
            case "acquire":
                limiter.acquire(number(words[3]));
                return "";
            case "release":
                limiter.release(number(words[3]));
                return "";
            case "available":
                return "" + limiter.availablePermits();
            case "config":
                RateLimiterConfig config = limiter.getConfig();
                return config.getRateType() + " " + config.getRate() + " " + config.getRateInterval();
            case "expire":
                return "" + limiter.expire(millis(words[3]));
            case "delete":
                return "" + limiter.delete();
            case "race":
                return "" + race(words[0], limiter, (int) number(words[3]), number(words[4]));
            default:
                throw new IllegalArgumentException("unknown operation " + words[1]);
        }
    }

    /** Takes permits one by one, in several threads, for this many milliseconds. */
    private int race(String number, RRateLimiter limiter, int threads, long ms) throws Exception {
        long end = micros() + ms * 1000;
        List<Future<Integer>> racers = new ArrayList<>();
        for (int nth = 0; nth < threads; nth++) {
            racers.add(workers.submit(() -> {
                int permits = 0;
                while (micros() < end) {
                    long left = Math.max(1, (end - micros()) / 1000);
                    long start = micros();
                    if (limiter.tryAcquire(1, Duration.ofMillis(left))) {
                        print(number, "permit", "" + start, "" + micros());
                        permits++;
                    }
                }
                return permits;
            }));
        }
        int permits = 0;
        for (Future<Integer> racer : racers) {
            permits += racer.get();
        }
        return permits;
    }

    /** Version 3 has no {@code updateRate}, so the method is looked up at run time. */
    private static String update(RRateLimiter limiter, RateType mode, long rate, Duration interval) throws Exception {
        Class<?> type = Class.forName("org.redisson.api.ratelimiter.RateLimiterArgs");
        Method of = type.getMethod("of", RateType.class, long.class, Duration.class);
        Object args = type.getMethod("keepState", boolean.class).invoke(of.invoke(null, mode, rate, interval), true);
        return "" + RRateLimiter.class.getMethod("updateRate", type).invoke(limiter, args);
    }

    private static RateType mode(String word) {
        return RateType.valueOf(word);
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }

    private static Duration millis(String word) {
        return Duration.ofMillis(number(word));
    }

    private static long micros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
    }
}
