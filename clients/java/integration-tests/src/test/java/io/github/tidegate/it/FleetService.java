package io.github.tidegate.it;

import io.github.tidegate.client.RateLimitedException;
import io.github.tidegate.spring.RateLimit;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/**
 * A service of a fleet. Calls a limited method until a time and prints, for each call that was
 * admitted, the microseconds before and after it.
 */
@Configuration
@EnableAutoConfiguration
public class FleetService {
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

    /** Arguments: the end in microseconds since 1970, then properties. */
    public static void main(String[] arguments) throws InterruptedException {
        long end = Long.parseLong(arguments[0]);
        SpringApplication application = new SpringApplication(FleetService.class);
        application.setWebApplicationType(WebApplicationType.NONE);
        String[] properties = java.util.Arrays.copyOfRange(arguments, 1, arguments.length);
        StringBuilder log = new StringBuilder("log\n");
        try (var context = application.run(properties)) {
            Work work = context.getBean(Work.class);
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
        System.out.println(log);
    }
}
