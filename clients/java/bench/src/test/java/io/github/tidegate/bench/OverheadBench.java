package io.github.tidegate.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.bucket4j.BucketConfiguration;
import io.github.bucket4j.distributed.ExpirationAfterWriteStrategy;
import io.github.bucket4j.distributed.proxy.ProxyManager;
import io.github.bucket4j.redis.lettuce.Bucket4jLettuce;
import io.github.tidegate.spring.RateLimit;
import io.github.tidegate.testing.RedisProcess;
import io.github.tidegate.testing.ServerProcess;
import io.lettuce.core.RedisClient;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/**
 * Latency of one admitted call: the annotation with a server on the same Redis, Bucket4j and
 * Redisson. The contenders take turns within each round; the medians over the rounds are printed.
 */
class OverheadBench {
    private static final int ROUNDS = 7;
    private static final int CALLS = Integer.getInteger("bench.calls", 2000);
    private static final int KEYS = 100;
    private static final long RATE = 1_000_000;

    static class Work {
        @RateLimit(rule = "bench", key = "#key")
        public boolean once(String key) {
            return true;
        }

        @RateLimit(rule = "leased", key = "#key")
        public boolean leased(String key) {
            return true;
        }
    }

    @Configuration
    @EnableAutoConfiguration
    static class Application {
        @Bean
        Work work() {
            return new Work();
        }
    }

    @Test
    void latency_of_an_admitted_call() throws Exception {
        Path policy = Files.createTempFile("bench", ".yaml");
        String rule = "key: [\"header:x\"], limits: [\"" + RATE + "/s\"]";
        Files.writeString(policy, "rules:\n  - { name: bench, " + rule + " }\n"
            + "  - { name: leased, lease: auto, " + rule + " }\n");
        try (RedisProcess redis = new RedisProcess();
            ServerProcess onRedis = ServerProcess.start(policy, redis.url(), null);
            ServerProcess inMemory = ServerProcess.start(policy, "memory", null);
            var http = application(onRedis, false);
            var resp = application(onRedis, true);
            var memory = application(inMemory, true);
            RedisClient lettuce = RedisClient.create(redis.url())) {
            RedissonClient redisson = redisson(redis);
            Map<String, BooleanSupplier> contenders = new LinkedHashMap<>();
            contenders.put("@RateLimit, RESP, server on Redis", annotation(resp));
            contenders.put("@RateLimit, RESP, with lease: auto", leased(resp));
            contenders.put("@RateLimit, HTTP, server on Redis", annotation(http));
            contenders.put("@RateLimit, RESP, server in memory", annotation(memory));
            contenders.put("Bucket4j 8.19 on Redis, Lettuce", bucket4j(lettuce));
            contenders.put("Redisson 4.7 RRateLimiter", rateLimiter(redisson));
            for (int threads : new int[] {1, 8}) {
                measure(contenders, threads);
            }
            redisson.shutdown();
        }
    }

    private static ConfigurableApplicationContext application(ServerProcess server, boolean resp) {
        SpringApplication application = new SpringApplication(Application.class);
        application.setWebApplicationType(WebApplicationType.NONE);
        server.awaitStore();
        return application.run("--tidegate.url=" + server.url(), "--tidegate.deadline=5s",
            "--tidegate.on-no-answer=deny", "--spring.main.banner-mode=off",
            "--logging.level.root=warn", resp ? "--tidegate.resp-url=" + server.respUrl() : "--x=");
    }

    private static BooleanSupplier annotation(ConfigurableApplicationContext application) {
        Work work = application.getBean(Work.class);
        AtomicInteger count = new AtomicInteger();
        return () -> work.once("key-" + count.incrementAndGet() % KEYS);
    }

    /** The server borrows permits from Redis and spends them by itself. */
    private static BooleanSupplier leased(ConfigurableApplicationContext application) {
        Work work = application.getBean(Work.class);
        AtomicInteger count = new AtomicInteger();
        return () -> work.leased("key-" + count.incrementAndGet() % KEYS);
    }

    private static BooleanSupplier bucket4j(RedisClient lettuce) {
        ProxyManager<byte[]> buckets = Bucket4jLettuce.casBasedBuilder(lettuce)
            .expirationAfterWrite(ExpirationAfterWriteStrategy
                .basedOnTimeForRefillingBucketUpToMax(Duration.ofSeconds(10))).build();
        BucketConfiguration configuration = BucketConfiguration.builder()
            .addLimit(limit -> limit.capacity(RATE).refillGreedy(RATE, Duration.ofSeconds(1)))
            .build();
        AtomicInteger count = new AtomicInteger();
        return () -> buckets.getProxy(("b4j-" + count.incrementAndGet() % KEYS)
            .getBytes(StandardCharsets.UTF_8), () -> configuration).tryConsume(1);
    }

    private static RedissonClient redisson(RedisProcess redis) {
        Config config = new Config();
        config.useSingleServer().setAddress(redis.url());
        return Redisson.create(config);
    }

    private static BooleanSupplier rateLimiter(RedissonClient redisson) {
        List<RRateLimiter> limiters = new ArrayList<>();
        for (int i = 0; i < KEYS; i++) {
            RRateLimiter limiter = redisson.getRateLimiter("redisson-" + i);
            limiter.trySetRate(RateType.OVERALL, RATE, Duration.ofSeconds(1));
            limiters.add(limiter);
        }
        AtomicInteger count = new AtomicInteger();
        return () -> limiters.get(count.incrementAndGet() % KEYS).tryAcquire();
    }

    private static void measure(Map<String, BooleanSupplier> contenders, int threads)
            throws Exception {
        Map<String, List<double[]>> results = new LinkedHashMap<>();
        for (int round = -2; round < ROUNDS; round++) {
            for (Map.Entry<String, BooleanSupplier> contender : contenders.entrySet()) {
                double[] result = run(contender.getValue(), threads);
                if (round >= 0) {
                    results.computeIfAbsent(contender.getKey(), name -> new ArrayList<>())
                        .add(result);
                }
            }
        }
        System.out.printf("%d thread(s), %d calls a round, medians of %d rounds%n", threads, CALLS,
            ROUNDS);
        results.forEach((name, rounds) -> System.out.printf("%-36s p50 %7.1f us  p99 %8.1f us%n",
            name, median(rounds, 0), median(rounds, 1)));
    }

    private static double median(List<double[]> rounds, int index) {
        double[] sorted = rounds.stream().mapToDouble(round -> round[index]).sorted().toArray();
        return sorted[sorted.length / 2];
    }

    /** p50 and p99 in microseconds. */
    private static double[] run(BooleanSupplier call, int threads) throws Exception {
        long[][] times = new long[threads][CALLS / threads];
        List<Thread> running = new ArrayList<>();
        AtomicInteger denied = new AtomicInteger();
        for (long[] own : times) {
            Thread thread = new Thread(() -> {
                for (int i = 0; i < own.length; i++) {
                    long began = System.nanoTime();
                    if (!call.getAsBoolean()) {
                        denied.incrementAndGet();
                    }
                    own[i] = System.nanoTime() - began;
                }
            });
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        assertEquals(0, denied.get());
        long[] sorted = Arrays.stream(times).flatMapToLong(LongStream::of).sorted().toArray();
        int p99 = sorted.length * 99 / 100;
        return new double[] {sorted[sorted.length / 2] / 1e3, sorted[p99] / 1e3};
    }
}
