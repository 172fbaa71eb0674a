package io.github.tidegate.it;

import io.github.tidegate.client.RateLimitedException;
import io.github.tidegate.spring.RateLimit;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/**
 * A service of a fleet. Prints a line when it is ready and reads a time in microseconds since 1970.
 * Until then it calls a limited method, and prints the times before and after each admitted call.
 */
@Configuration
@EnableAutoConfiguration
public class FleetService {
    static final String READY = "ready";

    /** The limited work. */
    static class Work {
        @RateLimit(rule = "shared", key = "'everyone'")
        public void once() {}
    }

    @Bean
    Work work() {
        return new Work();
    }

    static long micros() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    public static void main(String[] arguments) throws Exception {
        SpringApplication application = new SpringApplication(FleetService.class);
        application.setWebApplicationType(WebApplicationType.NONE);
        StringBuilder log = new StringBuilder();
        try (var context = application.run(arguments)) {
            Work work = context.getBean(Work.class);
            System.out.println(READY);
            long end = Long.parseLong(new BufferedReader(new InputStreamReader(System.in,
                StandardCharsets.US_ASCII)).readLine());
            while (micros() < end) {
                long before = micros();
                try {
                    work.once();
                    log.append(before).append(' ').append(micros()).append('\n');
                } catch (RateLimitedException e) {
                    Thread.sleep(3);
                }
            }
        }
        System.out.print(log);
    }
}
